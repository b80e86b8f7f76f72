// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "base/files.h"
#include "base/io/message_socket.h"
#include "base/io/stream_progress.h"

namespace vrun {
namespace {

TEST(Config, TheS3Store) {
  const std::string text =
      "s3_bucket = \"b\"\ns3_endpoint = \"http://h:1\"\ns3_credentials = \"/c\"\ns3_style = \"host\"\ns3_ca = "
      "\"/ca\"\ns3_snapshots = \"on\"\nsnapshots_size = \"5G\"\n";
  auto config = ParseConfig(text, "f");
  ASSERT_TRUE(config) << config.error().message();
  auto again = ParseConfig(FormatConfig(*config), "f");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->s3_bucket + again->s3_endpoint + again->s3_credentials + again->s3_style + again->s3_ca +
                again->s3_snapshots + again->snapshots_size,
            "bhttp://h:1/chost/caon5G");
  for (const char* bad : {"s3_bucket = \"b\"", "s3_credentials = \"c\"", "s3_style = \"other\"", "s3_ca = \"ca\"",
                          "s3_snapshots = \"on\"", "s3_snapshots = \"yes\"", "snapshots_size = \"5G\"",
                          "s3_bucket = \"b\"\ns3_credentials = \"/c\"\nsnapshots_size = \"5G\""}) {
    EXPECT_FALSE(ParseConfig(bad, "f")) << bad;
  }
}

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* base = std::getenv("TMPDIR");
    std::string pattern = std::string(base == nullptr ? "/var/tmp" : base) + "/vrun-config-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    EXPECT_TRUE(RemoveTree(dir_));
    for (const std::string& extra : remove_) EXPECT_TRUE(RemoveTree(extra));
  }

  Result<Places> Find(std::map<std::string, std::string> env) {
    return FindPlaces(
        [&](const char* name) -> const char* {
          auto it = env.find(name);
          return it == env.end() ? nullptr : it->second.c_str();
        },
        ::geteuid());
  }

  std::string dir_;
  std::vector<std::string> remove_;
};

TEST_F(ConfigTest, OneDirectoryHoldsEverythingWhenVrunDirIsSet) {
  auto p = Find({{"VRUN_DIR", dir_ + "/"}, {"HOME", "/nowhere"}});
  ASSERT_TRUE(p);
  EXPECT_EQ(p->config_file, dir_ + "/config.toml");
  EXPECT_EQ(p->state_dir, dir_ + "/state");
  EXPECT_EQ(p->socket, dir_ + "/home.sock");
}

TEST_F(ConfigTest, XdgDirectoriesAreUsedAndRelativeOnesIgnored) {
  ASSERT_TRUE(MakeDirs(dir_ + "/run", 0700));
  auto p = Find({{"HOME", dir_}, {"XDG_RUNTIME_DIR", dir_ + "/run"}, {"XDG_STATE_HOME", "relative"}});
  ASSERT_TRUE(p);
  EXPECT_EQ(p->config_file, dir_ + "/.config/vrun/config.toml");
  EXPECT_EQ(p->state_dir, dir_ + "/.local/state/vrun");
  EXPECT_EQ(p->socket, dir_ + "/run/vrun/home.sock");
}

TEST_F(ConfigTest, ARuntimeDirectoryThatOthersMayUseIsNotUsed) {
  ASSERT_TRUE(MakeDirs(dir_ + "/run", 0700));
  ASSERT_EQ(::chmod((dir_ + "/run").c_str(), 0755), 0);
  auto p = Find({{"HOME", dir_}, {"XDG_RUNTIME_DIR", dir_ + "/run"}});
  ASSERT_TRUE(p);
  EXPECT_TRUE(p->socket.starts_with("/run/vrun-") || p->socket.starts_with("/tmp/vrun-")) << p->socket;
}

TEST_F(ConfigTest, NoPlaceAtAllIsAnErrorThatSaysWhatToDo) {
  auto none = Find({});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("set HOME or VRUN_DIR"), std::string::npos);
  EXPECT_FALSE(Find({{"VRUN_DIR", "relative"}}));
  EXPECT_FALSE(Find({{"HOME", "relative"}}));
}

TEST_F(ConfigTest, ASocketPathThatIsTooLongMovesToAShortDirectoryAndWorks) {
  std::string deep = dir_ + "/" + std::string(120, 'd');
  auto one = Find({{"VRUN_DIR", deep + "1"}});
  auto two = Find({{"VRUN_DIR", deep + "2"}});
  ASSERT_TRUE(one && two);
  EXPECT_LT(one->socket.size(), 108u);
  EXPECT_NE(one->socket, two->socket);
  remove_ = {one->socket_dir, two->socket_dir};
  ASSERT_TRUE(MakePlaces(*one, ::geteuid()));
  auto listener = ListenUnix(one->socket);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_TRUE(ConnectUnix(one->socket));
}

TEST_F(ConfigTest, ASocketDirectoryOfSomebodyElseIsRefused) {
  auto p = Find({{"VRUN_DIR", dir_ + "/v"}});
  ASSERT_TRUE(p);
  EXPECT_FALSE(CheckSocketDirectory(*p, ::geteuid()));  // does not exist
  ASSERT_TRUE(MakePlaces(*p, ::geteuid()));
  EXPECT_TRUE(CheckSocketDirectory(*p, ::geteuid()));
  auto other = CheckSocketDirectory(*p, ::geteuid() + 1);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kDenied);
  ASSERT_EQ(::chmod(p->socket_dir.c_str(), 0777), 0);
  EXPECT_FALSE(CheckSocketDirectory(*p, ::geteuid()));
  ASSERT_EQ(::rename(p->socket_dir.c_str(), (dir_ + "/real").c_str()), 0);
  ASSERT_EQ(::symlink((dir_ + "/real").c_str(), p->socket_dir.c_str()), 0);
  EXPECT_FALSE(CheckSocketDirectory(*p, ::geteuid()));
}

TEST_F(ConfigTest, WhatIsWrittenIsReadBack) {
  Config c;
  c.controller = "127.0.0.1:7000";
  c.credentials = dir_ + "/a \"b\"\\\n\tc";
  c.credentials_name = "anna@host";
  c.pool = "größer";
  c.root = "/srv/root";
  c.cache_size = "20G";
  c.cache_min_free = "10%";
  c.kept_size = "30G";
  c.kept_days = "7";
  c.traces_endpoint = "https://collector:4318";
  c.traces_headers = "/etc/vrun/headers";
  c.traces_ratio = "0.25";
  c.fuse_push = "off";
  std::string file = dir_ + "/config.toml";
  ASSERT_TRUE(WriteConfig(file, c));
  auto back = ReadConfig(file);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->controller, c.controller);
  EXPECT_EQ(back->credentials, c.credentials);
  EXPECT_EQ(back->credentials_name, c.credentials_name);
  EXPECT_EQ(back->pool, c.pool);
  EXPECT_EQ(back->root, c.root);
  EXPECT_EQ(back->cache_size, c.cache_size);
  EXPECT_EQ(back->cache_min_free, c.cache_min_free);
  EXPECT_EQ(back->kept_size, c.kept_size);
  EXPECT_EQ(back->kept_days, c.kept_days);
  EXPECT_EQ(back->traces_endpoint, c.traces_endpoint);
  EXPECT_EQ(back->traces_headers, c.traces_headers);
  EXPECT_EQ(back->traces_ratio, c.traces_ratio);
  EXPECT_EQ(back->fuse_push, "off");
  EXPECT_EQ(back->fuse_passthrough, "");
  struct stat st;
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST(Config, WhatViewsUseIsAutoOnOrOff) {
  for (const char* key : {"fuse_passthrough", "fuse_push", "fuse_readdirplus", "fuse_no_open", "fuse_cpu_latency"}) {
    const std::string setting = std::string(key) + " = ";
    for (const char* good : {"\"auto\"", "\"on\"", "\"off\""})
      EXPECT_TRUE(ParseConfig(setting + good, "f")) << key << good;
    const auto bad = ParseConfig(setting + "\"no\"", "f");
    ASSERT_FALSE(bad) << key;
    EXPECT_EQ(bad.error().message(), "f:1: " + std::string(key) + ": must be \"auto\", \"on\" or \"off\"");
  }
}

TEST_F(ConfigTest, APathThatTomlCannotHoldIsRefusedAndNothingIsWritten) {
  Config c;
  c.root = "/srv/\xff";
  EXPECT_FALSE(WriteConfig(dir_ + "/config.toml", c));
  EXPECT_FALSE(PathExists(dir_ + "/config.toml"));
}

TEST_F(ConfigTest, DefaultsStandWhereNothingIsSaid) {
  auto c = ParseConfig("", "f");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->pool, "local");
  EXPECT_EQ(c->root, "/");
  EXPECT_EQ(ReadConfig(dir_ + "/none").error().code(), Code::kNotFound);
}

TEST_F(ConfigTest, MistakesAreNamedWithTheirLine) {
  struct Case {
    const char *text, *expected;
  };
  for (const Case& c :
       {Case{"\ncontroller = ", "f:2: "}, Case{"pool = \"a\"\n\npool = \"b\"\n", "f:3: "},
        Case{"\n\npol = \"a\"\n", "f:3: unknown setting pol"}, Case{"pool = 3\n", "f:1: pool: must be"},
        Case{"\nroot = \"relative\"\n", "f:2: root: not an absolute"},
        Case{"controller = \"nowhere\"\n", "f:1: controller: address nowhere: no port"},
        Case{"pool = \"\"\n", "f:1: pool: must not be empty"},
        Case{"traces_endpoint = \"collector:4318\"\n", "f:1: traces_endpoint: collector collector:4318: begins with"},
        Case{"\ntraces_endpoint = \"http://h:4318?x\"\n", "f:2: traces_endpoint: collector http://h:4318: a query"},
        Case{"traces_headers = \"here\"\n", "f:1: traces_headers: not an absolute"},
        Case{"traces_ratio = \"1.5\"\n", "f:1: traces_ratio: ratio 1.5: write a number"},
        Case{"root = \"/a\\u0000b\"\n", "f:1: root: must not hold"},
        Case{"[section]\nx = 1\n", "unknown setting section"}, Case{"\xff\xfe", "f:1: "}, Case{"\n[#a\n", "f:2: "},
        Case{"pool = \"a\"\n[[ # a\n]]\n", "f:2: "}}) {
    auto parsed = ParseConfig(c.text, "f");
    ASSERT_FALSE(parsed) << c.text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalid);
    EXPECT_NE(parsed.error().message().find(c.expected), std::string::npos) << parsed.error().message();
    EXPECT_EQ(parsed.error().message().find('\n'), std::string::npos) << parsed.error().message();
  }
}

TEST(CollectorTest, IsAnAddressAndNothingElse) {
  for (const char* good : {"http://h", "http://h/", "https://h:4318", "http://h:1", "http://h:65535/v1",
                           "http://127.0.0.1:4318", "http://[::1]", "http://[::1]:4318/a/b",
                           "https://collector.example.org/otlp/", "http://a-b_c:80", "http://h/a:b", "http://h/%3f"}) {
    const Status status = CheckCollector(good);
    EXPECT_TRUE(status) << good << ": " << status.error().message();
  }
  const std::pair<std::string, const char*> bad[] = {
      {"", "http:// nor"},
      {"h:4318", "http:// nor"},
      {"ftp://h", "http:// nor"},
      {"grpc://h", "http:// nor"},
      {"HTTP://h", "http:// nor"},
      {"http:h", "http:// nor"},
      {"http://", "no host"},
      {"http:///v1/traces", "no host"},
      {"http://:4318", "no host"},
      {"http://h:4318?x", "collector http://h:4318: a query"},
      {"http://h?x", "a query"},
      {"http://h/v1/traces?key=secret", "a query"},
      {"http://h:4318#x", "fragment"},
      {"http://h/#", "fragment"},
      {"http://user@h", "header"},
      {"http://user:secret@h:4318", "header"},
      {"http://user:se#cret@h", "header"},
      {"http://user:se/cret @h", "header"},
      {" http://h", "http:// nor"},
      {"http://h ", "a space"},
      {"http://a b", "a space"},
      {"http://h/a b", "a space"},
      {"http://h\n", "a space"},
      {"http://h\xc3\xa9", "character"},
      {std::string("http://h\0", 9), "character"},
      {"http://h\\x", "a mark"},
      {"http://<h>", "a mark"},
      {"http://h:", "not a port"},
      {"http://h:/v1", "not a port"},
      {"http://h:x", "not a port"},
      {"http://h:-1", "not a port"},
      {"http://h:+80", "host name"},
      {"http://h:0", "1 to 65535"},
      {"http://h:65536", "1 to 65535"},
      {"http://h:4318000", "not a port"},
      {"http://h:80:80", "brackets"},
      {"http://::1", "no host"},
      {"http://fe80::1", "brackets"},
      {"http://[::1", "brackets"},
      {"http://[::1]x", "brackets"},
      {"http://[h]:80", "brackets"},
      {"http://[]:80", "no host"},
      {"http://a,b", "host name"},
      {"http://h%20", "host name"},
      {"http://" + std::string(2000, 'h'), "2000 bytes"},
      {"http://" + std::string(1000, 'h') + ":x", "host name"},
  };
  for (const auto& [url, why] : bad) {
    const Status status = CheckCollector(url);
    ASSERT_FALSE(status) << url;
    const std::string& message = status.error().message();
    EXPECT_EQ(status.error().code(), Code::kInvalid);
    EXPECT_NE(message.find(why), std::string::npos) << url << ": " << message;
    EXPECT_EQ(message.find("cret"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << message;
  }
}

TEST_F(ConfigTest, LettersOutsideAsciiBelongInQuotes) {
  auto bare = ParseConfig("# \xc3\xa9\ncoc\xc7\x94oo = \"x\"\n", "config.toml");
  ASSERT_FALSE(bare);
  EXPECT_EQ(bare.error().message(), "config.toml:2: a letter outside of ASCII: put the text in quotes");
  auto quoted = ParseConfig("root = \"/caf\xc3\xa9 \\\" x\"  # \xc3\xa9\npool = '\xc3\xa9'\n", "config.toml");
  ASSERT_TRUE(quoted) << quoted.error().message();
  EXPECT_EQ(quoted->root, "/caf\xc3\xa9 \" x");
}

TEST(HostPortTest, AcceptsNamesAndAddresses) {
  EXPECT_EQ(ParseHostPort("localhost:1")->port, 1);
  EXPECT_EQ(ParseHostPort("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseHostPort("0.0.0.0:0", true)->port, 0);
  for (const char* bad : {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1x", "::1:5", "a b:1", "a/b:1", "[a:1",
                          "a:999999999999"}) {
    EXPECT_FALSE(ParseHostPort(bad)) << bad;
  }
}

TEST(StreamProgressTest, BothSidesSeeTheSameAndItCannotShrink) {
  auto fd = CreateStreamProgress();
  ASSERT_TRUE(fd);
  auto one = StreamProgressMap::Map(fd->get());
  auto two = StreamProgressMap::Map(fd->get());
  ASSERT_TRUE(one && two);
  (*one)->stdout_written = 7;
  EXPECT_EQ((*two)->stdout_written, 7u);
  EXPECT_NE(::ftruncate(fd->get(), 0), 0);
  EXPECT_EQ((*two)->line.exchange(ProgressLine::kOutput), ProgressLine::kNone);

  UniqueFd plain(::memfd_create("x", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(plain.get(), sizeof(StreamProgress)), 0);
  EXPECT_FALSE(StreamProgressMap::Map(plain.get()));
  EXPECT_FALSE(StreamProgressMap::Map(::open("/dev/null", O_RDWR | O_CLOEXEC)));
}

}  // namespace
}  // namespace vrun
