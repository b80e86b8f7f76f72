// SPDX-License-Identifier: Apache-2.0
#include "telemetry/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/files.h"
#include "base/hash/blake3.h"

namespace vrun::telemetry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<Settings> Read(const std::map<std::string, std::string>& environment, const Options& options = {}) {
  return ReadSettings(options, [&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(SettingsTest, NothingIsSentUnlessSomebodySaysWhereTo) {
  EXPECT_EQ(Read({})->url, "");
  EXPECT_EQ(Read({{"OTEL_SERVICE_NAME", "x"}, {"OTEL_TRACES_SAMPLER", "always_on"}})->url, "");
}

TEST(SettingsTest, KnowsTheStandardVariables) {
  const auto s = Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"},
                       {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-tenant = 7 "},
                       {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"},
                       {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"},
                       {"OTEL_BSP_SCHEDULE_DELAY", "200"},
                       {"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,service.name=mine"}});
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->url, "http://collector:4318/v1/traces");
  EXPECT_THAT(s->headers, ElementsAre(Pair("api-key", "a b"), Pair("x-tenant", "7")));
  EXPECT_EQ(s->ca_file, "/ca.pem");
  EXPECT_EQ(s->timeout_ms, 2500);
  EXPECT_EQ(s->delay_ms, 200);
  EXPECT_EQ(s->service, "mine");
  ASSERT_EQ(s->resource.size(), 1u);
  EXPECT_EQ(s->resource[0].first, "deployment.environment.name");
  // What is said of traces comes first, and its address is complete.
  const auto own = Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318"},
                         {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/in"},
                         {"OTEL_EXPORTER_OTLP_HEADERS", "a=1"},
                         {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"},
                         {"OTEL_SERVICE_NAME", "named"},
                         {"OTEL_RESOURCE_ATTRIBUTES", "service.name=mine"}});
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(own->url, "https://traces/in");
  EXPECT_THAT(own->headers, ElementsAre(Pair("b", "2")));
  EXPECT_EQ(own->service, "named");
}

TEST(SettingsTest, CanBeSwitchedOff) {
  const std::string url = "http://c:4318";
  EXPECT_EQ(Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", url}, {"OTEL_SDK_DISABLED", "TRUE"}})->url, "");
  EXPECT_EQ(Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", url}, {"OTEL_TRACES_EXPORTER", "none"}})->url, "");
  EXPECT_EQ(Read({{"OTEL_SDK_DISABLED", "true"}}, {.endpoint = url, .headers_file = "", .ratio = ""})->url, "");
  EXPECT_EQ(Read({{"OTEL_TRACES_EXPORTER", "none"}}, {.endpoint = url, .headers_file = "", .ratio = ""})->url,
            "http://c:4318/v1/traces")
      << "an option has the last word";
}

TEST(SettingsTest, RefusesWhatCannotBeMeant) {
  // All of CheckCollector is in config_test.cc.
  for (const char* url : {"collector:4318", "http://", "http://c:4318?x", "http://user:word@c", "http://c:x"}) {
    EXPECT_FALSE(Read({}, {.endpoint = url, .headers_file = "", .ratio = ""})) << url;
    EXPECT_FALSE(Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", url}})) << url;
    EXPECT_FALSE(Read({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url}})) << url;
  }
  const std::map<std::string, std::string> good = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}};
  const std::pair<const char*, const char*> bad[] = {{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
                                                     {"OTEL_EXPORTER_OTLP_HEADERS", "no value"},
                                                     {"OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0aX: y"},
                                                     {"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"},
                                                     {"OTEL_BSP_SCHEDULE_DELAY", "-1"},
                                                     {"OTEL_TRACES_SAMPLER", "jaeger_remote"},
                                                     {"OTEL_TRACES_SAMPLER_ARG", "2"}};
  for (const auto& [name, value] : bad) {
    auto environment = good;
    environment.insert({"OTEL_TRACES_SAMPLER", "traceidratio"});
    environment[name] = value;
    const auto read = Read(environment);
    EXPECT_FALSE(read) << name << "=" << value;
  }
  EXPECT_FALSE(Read(good, {.endpoint = "", .headers_file = "", .ratio = "half"}));
  EXPECT_TRUE(Read(good));
}

TEST(SettingsTest, AnErrorRepeatsNoSecret) {
  for (const char* text :
       {"Bearer secret", "=secret", "a=b,secret", "api key=secret", "a=secret%0a", "Authorization: Basic secret=="}) {
    const auto read = Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {"OTEL_EXPORTER_OTLP_HEADERS", text}});
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().message().find("secret"), std::string::npos) << read.error().message();
  }
  const auto read = Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {"OTEL_EXPORTER_OTLP_HEADERS", "x"}});
  EXPECT_THAT(read.error().message(), HasSubstr("OTEL_EXPORTER_OTLP_HEADERS: "));
}

TEST(SettingsTest, HeadersOfAFileAreSecret) {
  char directory[] = "/tmp/vrun-telemetry-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string file = std::string(directory) + "/headers";
  ASSERT_TRUE(WriteFileAtomic(file, "# of the collector\nAuthorization: Basic abc=\n\nX-Tenant: a:b \r\n", 0600));
  const Options options = {.endpoint = "http://c", .headers_file = file, .ratio = ""};
  const auto read = Read({{"OTEL_EXPORTER_OTLP_HEADERS", "a=b"}}, options);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_THAT(read->headers, ElementsAre(Pair("Authorization", "Basic abc="), Pair("X-Tenant", "a:b")));
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  const auto open = Read({}, options);
  ASSERT_FALSE(open);
  EXPECT_THAT(open.error().message(), HasSubstr("chmod 600"));
  ASSERT_TRUE(WriteFileAtomic(file, "secret without a name\n", 0600));
  const auto bad = Read({}, options);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message().find("secret"), std::string::npos) << "it may be one";
  (void)RemoveTree(directory);
}

TraceId TraceOf(int i) {
  TraceId id;
  const Digest digest = Blake3(std::to_string(i));
  std::copy_n(digest.bytes.begin(), 16, id.bytes.begin());
  return id;
}

TEST(SamplerTest, TakesAPartOfTheTraces) {
  const Sampler tenth{Sampler::Rule::kRatio, true, 0.1}, half{Sampler::Rule::kRatio, true, 0.5};
  int of_tenth = 0, of_half = 0;
  for (int i = 0; i < 20'000; ++i) {
    const bool taken = tenth.Takes(TraceOf(i), nullptr);
    of_tenth += taken;
    of_half += half.Takes(TraceOf(i), nullptr);
    EXPECT_TRUE(!taken || half.Takes(TraceOf(i), nullptr)) << "a smaller part is a part of a larger one";
  }
  EXPECT_NEAR(of_tenth, 2000, 200);
  EXPECT_NEAR(of_half, 10'000, 400);
  TraceId low, high;
  low.bytes[0] = high.bytes[0] = 1;
  for (size_t i = 8; i < 16; ++i) high.bytes[i] = 0xff;
  EXPECT_TRUE(tenth.Takes(low, nullptr));
  EXPECT_FALSE(half.Takes(high, nullptr));
  EXPECT_TRUE((Sampler{Sampler::Rule::kRatio, true, 1}.Takes(high, nullptr)));
  EXPECT_FALSE((Sampler{Sampler::Rule::kRatio, true, 0}.Takes(low, nullptr)));
}

TEST(SamplerTest, TheCallerDecidesUnlessToldOtherwise) {
  const TraceParent yes{TraceOf(1), {}, true}, no{TraceOf(1), {}, false};
  const auto of = [](const std::string& name, const std::string& argument = "") {
    return Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"},
                 {"OTEL_TRACES_SAMPLER", name},
                 {"OTEL_TRACES_SAMPLER_ARG", argument}})
        ->sampler;
  };
  for (const char* name : {"", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}) {
    EXPECT_TRUE(of(name).Takes(TraceOf(1), &yes)) << name;
    EXPECT_FALSE(of(name).Takes(TraceOf(1), &no)) << name;
  }
  EXPECT_TRUE(of("").Takes(TraceOf(1), nullptr));
  EXPECT_TRUE(of("always_on").Takes(TraceOf(1), &no));
  EXPECT_FALSE(of("always_off").Takes(TraceOf(1), &yes));
  EXPECT_FALSE(of("parentbased_always_off").Takes(TraceOf(1), nullptr));
  EXPECT_FALSE(of("traceidratio", "0").Takes(TraceOf(1), &yes));
  EXPECT_TRUE(of("parentbased_traceidratio", "1.0").Takes(TraceOf(1), nullptr));
  // The option.
  const auto ratio =
      Read({{"OTEL_TRACES_SAMPLER", "always_on"}}, {.endpoint = "http://c", .headers_file = "", .ratio = "0"});
  EXPECT_FALSE(ratio->sampler.Takes(TraceOf(1), nullptr));
  EXPECT_TRUE(ratio->sampler.Takes(TraceOf(1), &yes));
}

}  // namespace
}  // namespace vrun::telemetry
