// SPDX-License-Identifier: Apache-2.0
// vrund: the daemons. Users start them through vctl and service managers; see --help.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "base/heap.h"
#include "control/controller.h"
#include "daemon/backup.h"
#include "daemon/join.h"
#include "daemon/pki.h"
#include "home/home.h"
#include "node/agent/agent.h"
#include "node/fs/fs_keeper.h"
#include "node/fs/fs_server.h"
#include "node/views/view_features.h"
#include "snapshots/snapshots.h"

namespace {

void AddReadyFd(CLI::App* app, int* fd) {
  app->add_option("--ready-fd", *fd, "descriptor on which one line is written: \"ok\", or \"error: ...\"");
}

void AddTraces(CLI::App* app, vrun::telemetry::Options* traces) {
  app->add_option("--traces-endpoint", traces->endpoint,
                  "http[s]://HOST[:PORT] of a collector of OpenTelemetry that gets the spans of jobs; default: "
                  "$OTEL_EXPORTER_OTLP_ENDPOINT");
  app->add_option("--traces-headers", traces->headers_file,
                  "file of headers for it, \"NAME: value\" in each line, mode 0600");
  app->add_option("--traces-ratio", traces->ratio, "part of the jobs that are traced, from 0 to 1; default: all")
      ->check(CLI::Range(0.0, 1.0));
}

void AddFuse(CLI::App* app, std::vector<std::string>* settings) {
  app->add_option("--fuse", *settings,
                  "NAME=auto|on|off, of passthrough, push, readdirplus, no_open and cpu_latency: whether views use it "
                  "where the kernel can (live views: never passthrough); may be repeated")
      ->allow_extra_args(false)
      ->check([](const std::string& setting) {
        const auto parsed = vrun::node::ParseViewFeatures({setting});
        return parsed ? std::string() : parsed.error().message();
      });
}

// What both `backup` and `restore` take.
void AddStatePlace(CLI::App* app, vrun::daemon::BackupOptions* to) {
  app->add_option("--state-dir", to->place.state_directory, "of the controller")->required();
  app->add_option("--database", to->place.database, "of the controller: PostgreSQL, as libpq names it");
  app->add_option("--shared-dir", to->place.shared_directory, "of the controller; default: --state-dir");
  app->add_option("--authority", to->place.authority,
                  "directory of ca.pem and ca.key: with the key of the cluster's authority");
  app->add_flag("--json", to->json, "the result as JSON");
  app->add_option("file", to->file, "FILE")->required();
}

}  // namespace

int main(int argc, char** argv) {
  vrun::KeepFreedMemory();
  CLI::App app{"The daemons of vrun. `vctl up` starts them; this is what service managers call.", "vrund"};
  app.set_version_flag("--version", std::string("vrund ") + VRUN_VERSION);
  app.require_subcommand(1);
  int status = 0;

  vrun::home::HomeOptions home;
  CLI::App* home_app = app.add_subcommand("home", "the developer's side: serves the root, applies what jobs write");
  home_app->add_option("--root", home.root, "directory that jobs see as /")->capture_default_str();
  AddReadyFd(home_app, &home.ready_fd);
  home_app->callback([&] { status = vrun::home::HomeMain(home); });

  vrun::control::ControllerOptions controller;
  CLI::App* controller_app = app.add_subcommand("controller", "durable jobs, nodes, and who runs where");
  controller_app->add_option("--database", controller.database,
                             "PostgreSQL in place of a file in --state-dir, as libpq names it: "
                             "postgresql://USER@HOST/NAME; while another controller has it, this one stands by");
  controller_app->add_option("--shared-dir", controller.shared_directory,
                             "what controllers of one database have in common: people, keys; default: --state-dir");
  controller_app->add_option("--listen", controller.listen, "HOST:PORT")->required();
  controller_app->add_option("--state-dir", controller.state_directory, "directory of the database")->required();
  controller_app->add_option("--pki", controller.pki_directory, "directory of ca.pem, controller.pem, controller.key")
      ->required();
  controller_app->add_option("--authority", controller.authority,
                             "directory of ca.pem and ca.key, for machines that join by a token");
  controller_app
      ->add_option("--certificate-seconds", controller.certificate_seconds,
                   "how long the certificates of such machines are good; they renew them at half of it")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{4}, int64_t{365} * 24 * 3600))
      ->envname("VRUN_CERTIFICATE_SECONDS");
  controller_app->add_option("--door", controller.door,
                             "socket at which the users of this machine get a token each; needs --authority");
  controller_app->add_option("--pool", controller.pools,
                             "a pool that exists before a node of it has joined; may be repeated");
  controller_app->add_option("--scheduler-config", controller.scheduler_config,
                             "TOML file of teams and weights; SIGHUP reads the teams again");
  controller_app->add_option("--s3-bucket", controller.tier.bucket.name, "S3 bucket that the nodes' caches share");
  controller_app->add_option("--s3-endpoint", controller.tier.bucket.endpoint,
                             "http[s]://HOST[:PORT]; default: Amazon's, in the region");
  controller_app->add_option("--s3-region", controller.tier.bucket.region, "of the bucket")->capture_default_str();
  controller_app->add_option(
      "--s3-credentials", controller.tier.credentials_file,
      "file of aws_access_key_id and aws_secret_access_key, mode 0600; stays with the controller");
  controller_app->add_option("--s3-ca", controller.tier.ca_file, "PEM of the authority of the endpoint's certificate");
  controller_app->add_option("--s3-prefix", controller.tier.bucket.prefix, "of all keys")->capture_default_str();
  controller_app->add_flag("!--s3-host-style", controller.tier.bucket.path_style,
                           "the bucket is part of the host's name, not of the path");
  controller_app->add_option("--http", controller.http,
                             "HOST:PORT of the HTTP API and /metrics; TLS unless HOST is the loopback; default: none");
  controller_app->add_option("--home-socket", controller.home_socket,
                             "socket of the home that runs as this user, for logs in the dashboard; default: none");
  controller_app->add_flag("--metrics-open", controller.metrics_open, "/metrics needs no token");
  AddTraces(controller_app, &controller.traces);
  AddReadyFd(controller_app, &controller.ready_fd);
  controller_app->callback([&] { status = vrun::control::ControllerMain(controller); });

  vrun::node::AgentOptions node;
  CLI::App* node_app = app.add_subcommand("node", "runs tasks; dials the controller");
  node_app->add_option("--controller", node.controller, "HOST:PORT to dial; a node that has joined knows it");
  node_app->add_option("--name", node.name, "as in the certificate; of a node that joins: this machine's name");
  node.pool.clear();
  node_app->add_option("--pool", node.pool, "pool that it joins; default: that of its token, or else local");
  node_app->add_option("--state-dir", node.state_directory, "cache, tasks, journals")->required();
  node_app->add_option("--pki", node.pki_directory,
                       "directory of ca.pem, NAME.pem, NAME.key; of a node that joins: STATE-DIR/pki");
  std::string node_token;
  node_app->add_option("--join", node_token, "one-time token of `vctl node token`; when it has joined, it is not used")
      ->envname("VRUN_JOIN_TOKEN");
  node.listen_host.clear();
  node_app->add_option("--listen", node.listen_host,
                       "address where homes reach this node; default: the one from which it reaches the controller");
  node_app->add_option("--port", node.listen_port, "port there; 0: any")->capture_default_str();
  node_app->add_option("--metrics", node.metrics,
                       "HOST:PORT where Prometheus reads the node's figures, without a token; port 0: any");
  node_app->add_option("--milli-cpus", node.milli_cpus, "offered, in thousandths of a core; 0: what the machine has");
  node_app->add_option("--memory-bytes", node.memory_bytes, "offered; 0: what the machine has");
  node_app->add_option("--gpus", node.gpus, "offered; -1: what the machine has");
  node_app->add_option("--gpu-type", node.gpu_type, "e.g. h100");
  node_app->add_option("--driver-root", node.driver_root, "where the files of the GPUs' driver are")
      ->capture_default_str();
  node_app->add_option("--device-root", node.device_root, "where its /proc, /sys and /dev are")->capture_default_str();
  node_app->add_option("--dcgm-job-dir", node.dcgm_job_directory,
                       "write job ids there, for the --hpc-job-mapping-dir of DCGM's exporter");
  node_app->add_option("--gpu-interval-ms", node.gpu_interval_ms, "how often GPUs are metered and checked")
      ->capture_default_str()
      ->check(CLI::Range(100, 600000));
  const auto list = [node_app](const char* name, std::vector<std::string>* to, const char* help) {
    node_app->add_option(name, *to, help)->allow_extra_args(false);
  };
  list("--label", &node.facts.labels, "NAME or NAME=VALUE that jobs can ask for; may be repeated");
  list("--taint", &node.facts.taints, "NAME or NAME=VALUE: only jobs that tolerate it run here; may be repeated");
  node_app->add_flag("--allow-setuid", node.isolation.allow_setuid,
                     "setuid programs of a job's root work (sudo): they give rights in the job only");
  node_app->add_flag("--refuse-namespaces", node.isolation.refuse_namespaces,
                     "jobs may not make namespaces and mounts (bubblewrap, unshare, Chromium's sandbox)");
  node_app->add_flag("--allow-fuse", node.isolation.allow_fuse, "jobs may mount FUSE file systems (/dev/fuse)");
  node_app->add_flag("--require-device-filter", node.isolation.require_device_filter,
                     "no job starts where its devices cannot be filtered; else only those with GPUs do not");
  list("--refuse", &node.isolation.refuse,
       "where jobs may not connect: ADDRESS[/BITS][:PORT], or :PORT of this machine; may be repeated");
  node_app->add_option("--island", node.facts.island, "set of nodes that share one NVLink fabric");
  node_app->add_option("--rack", node.facts.rack, "nodes of one leaf switch");
  node_app->add_option("--block", node.facts.block, "racks of one spine switch");
  node_app->add_option("--zone", node.facts.zone, "of the cloud or the building");
  list("--gpu-group", &node.facts.gpu_groups,
       "GPUs that are close to each other, as in 0-3; may be repeated; default: by NUMA node");
  node_app->add_option("--bad-gpus", node.facts.bad_gpus, "GPUs that no job gets, as in 2,5");
  node_app->add_option("--emulate-gpus", node.facts.emulated_gpus)->group("");  // hidden: for tests
  node_app->add_option("--price", node.facts.price, "of one GPU, relative; default: the controller's for its type");
  node_app->add_option("--nics", node.facts.nics, "RDMA interfaces that are handed out one by one");
  node_app->add_option("--cache-bytes", node.cache_bytes,
                       "bound of all content caches together; 0: a quarter of the file system");
  node_app->add_option(
      "--cache-min-free-bytes", node.cache_min_free_bytes,
      "the caches shrink while the file system has less free, whoever fills it; counts up to a tenth of "
      "it; 0: 1 GiB");
  node_app
      ->add_option("--cache-min-free-percent", node.cache_min_free_percent, "the same in percent of the file system")
      ->check(CLI::Range(0, 90));
  node_app
      ->add_option("--kept-bytes", node.kept_bytes,
                   "bound of what jobs leave here with --writes=keep, of all homes together; the oldest goes first")
      ->capture_default_str();
  node_app->add_option("--kept-days", node.kept_days, "how long it stays")
      ->capture_default_str()
      ->check(CLI::Range(1, 36500));
  AddTraces(node_app, &node.traces);
  AddFuse(node_app, &node.fuse);
  AddReadyFd(node_app, &node.ready_fd);
  node_app->callback([&] {
    status = vrun::daemon::BecomeNode(node_token, &node);
    if (status == 0) status = vrun::node::AgentMain(node);
  });

  vrun::daemon::JoinOptions join;
  CLI::App* join_app = app.add_subcommand("join", "a one-time token becomes a certificate (`vctl login` runs it)");
  join_app->add_option("--token", join.token, "of `vctl user add`")->envname("VRUN_JOIN_TOKEN");
  join_app->add_option("--controller", join.controller,
                       "HOST:PORT/AUTHORITY of `vctl user address`: instead of a token, by an identity provider");
  join_app->add_option("--dir", join.directory, "where ca.pem, NAME.pem, NAME.key and `joined` go")->required();
  join_app->add_option("--name", join.name, "of this machine; default: its host name");
  join_app->add_option("--role", join.role, "what this machine shall be; default: what the token is for")
      ->check(CLI::IsMember({"home", "node"}));
  join_app->callback([&] { status = vrun::daemon::JoinMain(join); });

  vrun::node::FsServerOptions fs;
  CLI::App* fs_app = app.add_subcommand("fs", "file system server of one home on one node (started by its keeper)");
  fs_app->add_option("--fd", fs.listener, "listening socket for the agent")->required();
  fs_app->add_option("--keeper-fd", fs.keeper, "socket of the keeper")->required();
  fs_app->add_option("--home-id", fs.home_id, "whose root")->required();
  fs_app->add_option("--tenant", fs.tenant, "name of its directories")->required();
  fs_app->add_option("--uid-base", fs.uid_base, "host uid of the root's uid 0")->required();
  fs_app->add_option("--uid-ranges", fs.uid_ranges, "file with the tenants' ids");
  fs_app->add_option("--store-dir", fs.store_directory, "content cache")->required();
  fs_app->add_option("--views-dir", fs.views_directory, "mount points")->required();
  fs_app->add_option("--listen", fs.listen_host, "address where home reaches it")->required();
  fs_app->add_option("--pki", fs.pki_directory, "directory of the node's certificate")->required();
  fs_app->add_option("--name", fs.node_name, "the node's name")->required();
  fs_app->add_option("--pool", fs.pool, "whose nodes pass content on to each other");
  fs_app->add_option("--cache-bytes", fs.cache_bytes, "bound of the content cache; 0: the default");
  fs_app->add_option("--cache-min-free-bytes", fs.cache_min_free_bytes, "free space that is left to others");
  fs_app->add_option("--cache-min-free-percent", fs.cache_min_free_percent, "the same in percent");
  std::vector<std::string> fuse;
  AddFuse(fs_app, &fuse);
  fs_app->add_flag("--s3", fs.s3, "the pool has an S3 store");
  fs_app->callback([&] {
    fs.features = *vrun::node::ParseViewFeatures(fuse);
    status = vrun::node::FsServerMain(fs);
  });

  vrun::node::FsKeeperOptions keeper;
  CLI::App* keeper_app =
      app.add_subcommand("fs-keeper", "keeps mounts while their server is replaced (started by the agent)");
  keeper_app->add_option("--fd", keeper.listener, "listening socket for agents")->required();
  keeper_app->add_option("command", keeper.command, "of the file system server, after --")->required();
  keeper_app->callback([&] { status = vrun::node::FsKeeperMain(keeper); });

  vrun::snapshots::SnapshotsOptions snapshots;
  CLI::App* snapshots_app =
      app.add_subcommand("snapshots", "keeps named snapshots, and serves them without their home");
  snapshots_app->add_option("--listen", snapshots.listen, "HOST:PORT where homes reach it")->required();
  snapshots_app->add_option("--state-dir", snapshots.state_directory, "all content of all snapshots")->required();
  snapshots_app->add_option("--pki", snapshots.pki_directory, "directory of ca.pem, snapshots.pem, snapshots.key")
      ->required();
  CLI::Option* snapshots_bucket = snapshots_app->add_option(
      "--s3-bucket", snapshots.s3_bucket, "the controller's S3 bucket keeps the snapshots too: a lost disk is no loss");
  CLI::Option* snapshots_controller = snapshots_app->add_option("--controller", snapshots.controller,
                                                                "HOST:PORT of the controller, which has its keys");
  snapshots_bucket->needs(snapshots_controller);
  snapshots_controller->needs(snapshots_bucket);
  snapshots_app
      ->add_option("--disk-bytes", snapshots.disk_bytes,
                   "so much of each owner's content stays on this disk once S3 has it; 0: all")
      ->needs(snapshots_bucket);
  AddReadyFd(snapshots_app, &snapshots.ready_fd);
  snapshots_app->callback([&] { status = vrun::snapshots::SnapshotsMain(snapshots); });

  vrun::daemon::PkiOptions pki;
  CLI::App* pki_app = app.add_subcommand("pki", "certificates of a cluster");
  pki_app->require_subcommand(1);
  CLI::App* ca = pki_app->add_subcommand("ca", "a new authority, or the one that is there");
  ca->add_option("--dir", pki.directory)->required();
  ca->callback([&] {
    pki.make_authority = true;
    status = vrun::daemon::PkiMain(pki);
  });
  CLI::App* issue = pki_app->add_subcommand("issue", "a certificate for a role and a name");
  issue->add_option("--ca", pki.authority, "directory of ca.pem and ca.key")->required();
  issue->add_option("--dir", pki.directory, "where NAME.pem and NAME.key go")->required();
  issue->add_option("--role", pki.role)->required()->check(CLI::IsMember({"home", "node", "controller", "snapshots"}));
  issue->add_option("--name", pki.name)->required();
  issue->add_option("--days", pki.days)->capture_default_str();
  issue->callback([&] { status = vrun::daemon::PkiMain(pki); });

  vrun::daemon::BackupOptions backup;
  CLI::App* backup_app = app.add_subcommand("backup", "the state of a controller, which may run, into a file");
  AddStatePlace(backup_app, &backup);
  backup_app->callback([&] { status = vrun::daemon::BackupMain(backup); });
  vrun::daemon::BackupOptions restore;
  CLI::App* restore_app = app.add_subcommand("restore", "a file of `backup` becomes the state of a controller");
  AddStatePlace(restore_app, &restore);
  restore_app->add_flag("--replace", restore.restore.replace, "move what is there aside");
  restore_app->add_flag("--exact", restore.restore.exact, "nothing has run since the backup: job numbers go on");
  restore_app->callback([&] { status = vrun::daemon::RestoreMain(restore); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  return status;
}
