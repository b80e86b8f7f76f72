// SPDX-License-Identifier: Apache-2.0
#include "home/clients/home_metrics.h"

#include "http/metrics_page.h"
#include "telemetry/figures.h"

namespace vrun::home {

std::string MetricsText(const HomeFigures& figures) {
  http::MetricsPage page;
  page.Head("vrun_home_info", "gauge", "What the home is.");
  page.Value({{"version", VRUN_VERSION}, {"watch", figures.root.watch}}, 1);
  page.Only("vrun_home_controller_connected", "gauge", "1 if the last call to the controller was answered.",
            figures.connected);
  page.Only("vrun_home_runs", "gauge", "Jobs of this home that have not ended.", static_cast<double>(figures.runs));
  page.Only("vrun_home_root_entries", "gauge", "Files and directories of the root that are known.",
            static_cast<double>(figures.entries));
  page.Only("vrun_home_root_scanned", "gauge", "1 once the whole root is known.", figures.root.scanned);
  page.Only("vrun_home_last_scan_seconds", "gauge", "How long the last scan of the whole root took.",
            figures.root.scan_seconds);
  page.Only("vrun_home_served_bytes_total", "counter", "Content that was sent to nodes.",
            static_cast<double>(figures.served_bytes));
  page.Only("vrun_home_metadata_requests_total", "counter", "Questions of nodes about names and attributes.",
            static_cast<double>(figures.metadata_requests));
  if (figures.certificate_ends_us > 0) {
    page.Only("vrun_home_certificate_end_timestamp_seconds", "gauge", "When the certificate ends, since 1970.",
              static_cast<double>(figures.certificate_ends_us) / 1e6);
  }
  telemetry::AddFigures(&page);
  return page.Take();
}

}  // namespace vrun::home
