// SPDX-License-Identifier: Apache-2.0
#include "cli/run/explain_io.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "cli/base/table.h"

namespace vrun::cli {
namespace {

std::string Seconds(uint64_t micros) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", static_cast<double>(micros) / 1e6);
  return text;
}

// Explains each source.
std::string Explain(const std::string& source) {
  if (source == "cache") return "was on the node already";
  if (source == "trace") return "read by earlier runs of this program";
  if (source == "ahead") return "home's page cache, libraries, files beside it";
  if (source == "demand") return "fetched when it was read";
  return "";
}

}  // namespace

std::string FormatIo(const v1::Finished& finished) {
  if (!finished.has_io()) {
    return "vrun: --explain-io: no node has reported: the command never ran, or the report did not come in time\n";
  }
  const v1::IoReport& io = finished.io();
  Table sources({"SOURCE", "FETCHED", "UNITS", "READ", "UNREAD", "FROM", "UNTIL", "WHY"});
  uint64_t fetched = 0;
  for (const v1::IoSource& source : io.source()) {
    const bool cache = source.name() == "cache";
    fetched += source.fetched_units();
    sources.Add({source.name(), cache ? "" : FormatBytes(source.fetched_bytes()),
                 cache ? "" : std::to_string(source.fetched_units()), std::to_string(source.used_units()),
                 cache ? "" : FormatBytes(source.unread_bytes()),
                 source.has_fetched() ? Seconds(source.fetched().first_us()) : "",
                 source.has_fetched() ? Seconds(source.fetched().last_us()) : "", Explain(source.name())});
  }
  std::string text = sources.Format(true);
  const uint64_t share = io.wall_us() == 0 ? 0 : std::min<uint64_t>(100, io.link_busy_us() * 100 / io.wall_us());
  text += std::to_string(io.files()) + " files read, " + FormatBytes(io.wire_bytes()) + " from home";
  if (io.peer_bytes() > 0) text += ", " + FormatBytes(io.peer_bytes()) + " from other nodes";
  if (io.s3_bytes() > 0) text += ", " + FormatBytes(io.s3_bytes()) + " from the S3 store";
  text += "; home's link busy " + std::to_string(share) + " % of " + Seconds(io.wall_us()) + "\n" +
          std::to_string(io.waits()) + " waits for content, " + Seconds(io.waited_us()) + " in all\n";
  if (fetched == 0) {
    text += "nothing was fetched: all that was read was here already; what the kernel has in its page cache is not ";
    text += "counted above\n";
  } else if (io.warm()) {
    text += "some of it was here before: what the kernel has in its page cache is not counted above\n";
  }
  if (io.shared()) text += "other runs were there at the same time: the figures include theirs\n";
  if (io.slowest_size() > 0) {
    Table slowest({"WAITED", "AT", "SOURCE", "OFFSET", "FILE"});
    for (const v1::IoWait& wait : io.slowest()) {
      slowest.Add({Seconds(wait.waited_us()), Seconds(wait.at_us()), wait.source(), std::to_string(wait.offset()),
                   wait.path()});
    }
    text += slowest.Format(true);
  }
  if (io.largest_size() > 0) {
    Table largest({"FETCHED", "UNREAD", "SOURCE", "FROM", "UNTIL", "FILE"});
    for (const v1::IoFile& file : io.largest()) {
      largest.Add({FormatBytes(file.fetched_bytes()), FormatBytes(file.unread_bytes()), file.source(),
                   Seconds(file.fetched().first_us()), Seconds(file.fetched().last_us()), file.path()});
    }
    text += largest.Format(true);
  }
  return text;
}

}  // namespace vrun::cli
