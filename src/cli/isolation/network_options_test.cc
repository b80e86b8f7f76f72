// SPDX-License-Identifier: Apache-2.0
#include "cli/isolation/network_options.h"

#include <gtest/gtest.h>

#include "cli/request/run_options.h"
#include "ports/published_port.h"

namespace vrun::cli {
namespace {

using Words = std::vector<std::string>;

std::string PortsOf(const Words& words) {
  auto options = ParseRun(words);
  if (!options) return options.error().message();
  std::string out = options->spec.pool();
  for (const v1::PublishedPort& port : options->spec.ports()) out += "[" + PublishedPortText(port) + "]";
  return out;
}

TEST(NetworkOptionsTest, TheShortOptionIsAPortOrAPool) {
  EXPECT_EQ(PortsOf({"-p", "8888", "x"}), "[127.0.0.1:8888]");
  EXPECT_EQ(PortsOf({"-p8888:80", "-p", "9000/tcp", "x"}), "[127.0.0.1:8888 -> 80][127.0.0.1:9000]");
  EXPECT_EQ(PortsOf({"-p", "gpu", "-p", "8888", "x"}), "gpu[127.0.0.1:8888]");
  EXPECT_EQ(PortsOf({"--partition", "8888", "x"}), "8888");
  EXPECT_EQ(PortsOf({"--publish", "gpu", "x"}),
            "--publish: gpu: gpu is no port from 1 to 65535: write PORT, PORT:JOB_PORT or ADDRESS:PORT:JOB_PORT");
}

TEST(NetworkOptionsTest, BadPortsAreNamed) {
  for (const char* bad : {"0", "70000", "65536", "8888:0", "0:8888", "8888/udp", "1:2:3:4"}) {
    EXPECT_FALSE(ParseRun(Words{"-p", bad, "x"})) << bad;
  }
  EXPECT_EQ(PortsOf({"-p", "8888", "-p", "8888:80", "x"}), "-p: 127.0.0.1:8888 is published twice: leave one out");
}

TEST(NetworkOptionsTest, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_FALSE(ParseRun(Words{"--network", "none", "x"}));
  EXPECT_FALSE(ParseRun(Words{"--network=private", "-N", "2", "x"}));
  EXPECT_TRUE(ParseRun(Words{"--network=private", "--ntasks-per-node", "2", "x"}));
  EXPECT_TRUE(ParseRun(Words{"--network=host", "-N", "2", "-p", "8888", "x"}));
  EXPECT_FALSE(ParseBatch(Words{"-a", "0-3", "-p", "8888", "x"}));
  EXPECT_EQ(ParseRun(Words{"--network=private", "x"})->spec.network(), v1::NETWORK_PRIVATE);
}

}  // namespace
}  // namespace vrun::cli
