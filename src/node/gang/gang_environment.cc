// SPDX-License-Identifier: Apache-2.0
#include "node/gang/gang_environment.h"

#include <algorithm>

#include "base/clock.h"

namespace vrun::node {
namespace {

using Environment = std::vector<std::string>;

bool IsSet(const Environment& environment, const std::string& name) {
  const std::string prefix = name + "=";
  return std::any_of(environment.begin(), environment.end(), [&](const auto& e) { return e.starts_with(prefix); });
}

// For tools: the user's own value is better.
void SetDefault(Environment* environment, const std::string& name, const std::string& value) {
  if (!IsSet(*environment, name)) environment->push_back(name + "=" + value);
}

std::string Number(uint64_t n) { return std::to_string(n); }

uint32_t CpusOf(const v1::StartAttempt& order) {
  return std::max(1u, (order.spec().resources().milli_cpus() + 999) / 1000);
}

// Processes that an MPI launcher may start in one pod.
uint32_t Slots(const v1::StartAttempt& order, const Gang::Pod& pod) {
  return pod.ranks > 1 ? pod.ranks : std::max({1u, CpusOf(order), pod.gpus});
}

bool Launches(const v1::StartAttempt& order) { return order.spec().gang().launcher(); }

// "8(x4),2": Slurm's form of a list of numbers, one a node.
std::string Counts(const std::vector<uint32_t>& counts) {
  std::string out;
  for (size_t i = 0; i < counts.size();) {
    size_t end = i;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    out += (out.empty() ? "" : ",") + Number(counts[i]) + (end - i > 1 ? "(x" + Number(end - i) + ")" : "");
    i = end;
  }
  return out;
}

template <typename Function>
std::string Joined(const Gang& gang, const char* separator, Function text) {
  std::string out;
  for (const Gang::Pod& pod : gang.pods()) out += (out.empty() ? "" : separator) + text(pod);
  return out;
}

std::string HostNames(const Gang& gang) {
  return Joined(gang, ",", [](const Gang::Pod& pod) { return pod.host_name; });
}

std::string NodeNames(const Gang& gang) {
  std::vector<std::string> seen;
  for (const Gang::Pod& pod : gang.pods()) {
    if (std::find(seen.begin(), seen.end(), pod.node) == seen.end()) seen.push_back(pod.node);
  }
  std::string out;
  for (const std::string& node : seen) out += (out.empty() ? "" : ",") + node;
  return out;
}

std::string HomeVariable(const Environment& environment, const std::string& name) {
  for (const std::string& e : environment) {
    if (e.starts_with(name + "=")) return e.substr(name.size() + 1);
  }
  return "";
}

// --- Slurm: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES", and srun(1). A list of nodes has no brackets, so that programs
// that do not expand them read it too.

void SetSlurmJob(const v1::TaskSpec& spec, const Gang& gang, Environment* environment) {
  const v1::StartAttempt& order = spec.order();
  const v1::RunSpec& run = order.spec();
  const v1::Placement& place = order.placement();
  std::erase_if(*environment, [](const std::string& e) {
    return e.starts_with("SLURM_") || e.starts_with("SLURMD_") || e.starts_with("SRUN_");
  });
  const auto set = [&](const char* name, const std::string& value) {
    environment->push_back(std::string(name) + "=" + value);
  };
  const std::string job = Number(place.job()), nodes = Number(gang.pods().size()), names = HostNames(gang);
  const std::string user(run.command().identity().user_name());
  std::vector<uint32_t> tasks, cpus;
  uint64_t all_tasks = 0;
  for (const Gang::Pod& pod : gang.pods()) {
    tasks.push_back(Launches(order) ? Slots(order, pod) : pod.ranks);
    cpus.push_back(CpusOf(order));
    all_tasks += tasks.back();
  }
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID"}) set(name, job);
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) set(name, "0");
  set("SLURM_JOB_NAME", run.name());
  set("SLURM_CLUSTER_NAME", "vrun");
  set("SLURM_JOB_PARTITION", run.pool());
  if (!run.scheduling().team().empty()) set("SLURM_JOB_ACCOUNT", run.scheduling().team());
  if (!user.empty()) set("SLURM_JOB_USER", user);
  set("SLURM_JOB_UID", Number(run.command().identity().uid()));
  set("SLURM_JOB_GID", Number(run.command().identity().gid()));
  for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"}) set(name, names);
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"}) set(name, nodes);
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) set(name, Number(all_tasks));
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) set(name, Counts(tasks));
  set("SLURM_NTASKS_PER_NODE", Number(tasks[gang.index()]));
  set("SLURM_JOB_CPUS_PER_NODE", Counts(cpus));
  set("SLURM_CPUS_ON_NODE", Number(cpus[gang.index()]));
  set("SLURM_CPUS_PER_TASK", Number(std::max(1u, cpus[gang.index()] / std::max(1u, tasks[gang.index()]))));
  if (run.resources().memory_bytes() != 0) set("SLURM_MEM_PER_NODE", Number(run.resources().memory_bytes() >> 20));
  if (gang.here().gpus != 0) {
    std::string gpus;
    for (uint32_t i = 0; i < gang.here().gpus; ++i) gpus += (i == 0 ? "" : ",") + Number(i);
    set("SLURM_GPUS_ON_NODE", Number(gang.here().gpus));
    set("SLURM_GPUS_PER_NODE", Number(gang.here().gpus));
    for (const char* name : {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS"}) set(name, gpus);
  }
  set("SLURM_NODEID", Number(gang.index()));
  set("SLURMD_NODENAME", gang.here().host_name);
  set("SLURM_TOPOLOGY_ADDR", gang.here().host_name);
  set("SLURM_TOPOLOGY_ADDR_PATTERN", "node");
  set("SLURM_DISTRIBUTION", "block");
  set("SLURM_SUBMIT_DIR", run.command().directory());
  if (const std::string host = HomeVariable(*environment, "VRUN_SUBMIT_HOST"); !host.empty()) {
    set("SLURM_SUBMIT_HOST", host);
  }
  set("SLURM_LAUNCH_NODE_IPADDR", gang.pods()[0].address);
  set("SLURM_SRUN_COMM_HOST", gang.pods()[0].address);
  set("SLURM_RESTART_COUNT", Number(place.attempt() > 0 ? place.attempt() - 1 : 0));
  const int64_t now = WallMicros() / 1000000;
  set("SLURM_JOB_START_TIME", Number(static_cast<uint64_t>(now)));
  if (run.scheduling().limit_s() != 0) {
    set("SLURM_JOB_END_TIME", Number(static_cast<uint64_t>(now) + run.scheduling().limit_s()));
  }
  if (order.parent_array() == 0) return;
  set("SLURM_ARRAY_JOB_ID", Number(order.parent_array()));
  set("SLURM_ARRAY_TASK_ID", Number(order.array_index()));
  set("SLURM_ARRAY_TASK_COUNT", Number(order.array_count()));
  set("SLURM_ARRAY_TASK_MIN", Number(order.array_min()));
  set("SLURM_ARRAY_TASK_MAX", Number(order.array_max()));
}

void SetSlurmTask(const Gang& gang, uint32_t local, Environment* environment) {
  std::string local_ranks;
  for (uint32_t i = 0; i < gang.here().ranks; ++i) {
    local_ranks += (i == 0 ? "" : ",") + Number(gang.here().first_rank + i);
  }
  environment->push_back("SLURM_PROCID=" + Number(gang.here().first_rank + local));
  environment->push_back("SLURM_LOCALID=" + Number(local));
  environment->push_back("SLURM_GTIDS=" + local_ranks);
}

void SetVrunArray(const v1::StartAttempt& order, Environment* environment) {
  if (order.parent_array() == 0) return;
  SetVariable(environment, "VRUN_ARRAY_JOB_ID", Number(order.parent_array()));
  SetVariable(environment, "VRUN_ARRAY_TASK_ID", Number(order.array_index()));
  SetVariable(environment, "VRUN_ARRAY_TASK_COUNT", Number(order.array_count()));
  SetVariable(environment, "VRUN_ARRAY_TASK_MIN", Number(order.array_min()));
  SetVariable(environment, "VRUN_ARRAY_TASK_MAX", Number(order.array_max()));
}

// --- what all processes of a pod have in common ---

// torchrun reads its own options from PET_NAME (torch/distributed/argparse_util.py). It is itself one process a pod,
// and replaces RANK and the like for the processes that it starts.
void SetTorchrun(const v1::StartAttempt& order, const Gang& gang, Environment* environment) {
  const std::string port = Number(MasterPort(order.placement().job())), master = gang.pods()[0].host_name;
  const v1::Gang& asked = order.spec().gang();
  const std::string pods = Number(gang.pods().size());
  SetDefault(environment, "PET_NPROC_PER_NODE", Number(std::max(1u, gang.here().gpus)));
  if (asked.min_pods() != 0 &&
      asked.min_pods() < asked.pods()) {  // elastic: members meet, instead of being numbered in advance
    SetDefault(environment, "PET_NNODES", Number(asked.min_pods()) + ":" + Number(asked.pods()));
    SetDefault(environment, "PET_RDZV_BACKEND", "c10d");
    SetDefault(environment, "PET_RDZV_ENDPOINT", master + ":" + port);
    SetDefault(environment, "PET_RDZV_ID", Number(order.placement().job()));
    // The processes of the others fail when a pod leaves, and are started again with those that are there.
    SetDefault(environment, "PET_MAX_RESTARTS", "100");
    return;
  }
  SetDefault(environment, "PET_NNODES", pods);
  SetDefault(environment, "PET_NODE_RANK", Number(gang.pod()));
  SetDefault(environment, "PET_MASTER_ADDR", master);
  SetDefault(environment, "PET_MASTER_PORT", port);
}

// mpirun of Open MPI 4 (OMPI_MCA) and 5 (PRTE_MCA), and of MPICH (HYDRA): start processes of other pods through the
// job's socket, in the pods of this job. Without this they would call srun, because SLURM_JOB_ID is set.
void SetMpiLaunchers(Environment* environment) {
  for (const char* name : {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC"}) {
    SetDefault(environment, name, kRshPath);
  }
  for (const char* name : {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"}) {
    SetDefault(environment, name, kHostfilePath);
  }
  SetDefault(environment, "OMPI_MCA_plm", "rsh");
  SetDefault(environment, "PRTE_MCA_plm", "ssh");
  for (const char* name : {"OMPI_MCA_ras", "PRTE_MCA_ras", "OMPI_MCA_schizo"}) SetDefault(environment, name, "^slurm");
  // `mpirun -n 32` in 4 pods of one processor each is what was asked for.
  SetDefault(environment, "OMPI_MCA_rmaps_base_oversubscribe", "1");
  SetDefault(environment, "PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  SetDefault(environment, "HYDRA_LAUNCHER", "ssh");
  SetDefault(environment, "HYDRA_RMK", "user");
  SetDefault(environment, "HYDRA_HOST_FILE", kHydraHostsPath);
}

Environment CommonEnvironment(const v1::TaskSpec& spec, const Gang& gang, Environment environment) {
  const v1::StartAttempt& order = spec.order();
  const std::string port = Number(MasterPort(order.placement().job())), master = gang.pods()[0].host_name;
  if (!order.spec().gang().no_slurm_environment()) SetSlurmJob(spec, gang, &environment);
  SetVrunArray(order, &environment);
  const auto set = [&](const char* name, const std::string& value) { SetVariable(&environment, name, value); };
  set("VRUN_NODELIST", NodeNames(gang));
  set("VRUN_PODS", Number(gang.pods().size()));
  set("VRUN_POD", Number(gang.pod()));
  set("VRUN_POD_NAME", gang.here().name);
  set("VRUN_ROLE", gang.here().role);
  set("VRUN_MEMBERS", kMembersPath);
  set("MASTER_ADDR", master);
  set("MASTER_PORT", port);
  SetDefault(&environment, "JAX_COORDINATOR_ADDRESS", master + ":" + port);
  if (gang.here().ranks == 1 || Launches(order)) SetTorchrun(order, gang, &environment);
  SetMpiLaunchers(&environment);
  // SkyPilot's and Velda's names, for scripts that were written for them.
  set("SKYPILOT_NUM_NODES", Number(gang.pods().size()));
  set("SKYPILOT_NODE_RANK", Number(gang.pod()));
  set("SKYPILOT_NODE_IPS", Joined(gang, "\n", [](const Gang::Pod& pod) { return pod.address; }));
  set("SKYPILOT_NUM_GPUS_PER_NODE", Number(gang.here().gpus));
  set("VELDA_SHARD_ID", Number(gang.pod()));
  set("VELDA_TOTAL_SHARDS", Number(gang.pods().size()));
  return environment;
}

// --- what each process has of its own ---

// TensorFlow's MultiWorkerMirroredStrategy: every process serves at a port of its own. Without a strategy it is not
// read. The ports are below those of MasterPort. A variable of the environment has at most 128 KiB (execve(2)).
void SetTensorFlow(const v1::StartAttempt& order, const Gang& gang, uint32_t rank, Environment* environment) {
  constexpr uint32_t kMostWorkers = 1024;
  if (gang.world_size() > kMostWorkers) return;
  const uint64_t first = 10000 + order.placement().job() * 8 % 4000;
  std::string workers;
  for (const Gang::Pod& pod : gang.pods()) {
    for (uint32_t local = 0; local < pod.ranks; ++local) {
      workers += (workers.empty() ? "\"" : ", \"") + pod.host_name + ":" + Number(first + local) + "\"";
    }
  }
  SetVariable(
      environment, "TF_CONFIG",
      R"({"cluster": {"worker": [)" + workers + R"(]}, "task": {"type": "worker", "index": )" + Number(rank) + "}}");
}

void SetRank(const v1::StartAttempt& order, const Gang& gang, uint32_t local, Environment* environment) {
  const std::string rank = Number(gang.here().first_rank + local), world = Number(gang.world_size());
  const std::string here = Number(gang.here().ranks), pod = Number(gang.pod());
  const auto set = [&](const char* name, const std::string& value) { SetVariable(environment, name, value); };
  set("VRUN_TASK", rank);
  set("VRUN_RANK", rank);
  set("VRUN_RANKS", world);
  set("VRUN_LOCAL_RANK", Number(local));
  set("VRUN_LOCAL_RANKS", here);
  // torch.distributed, init_method "env://", and torchrun's names for the rest.
  set("RANK", rank);
  set("WORLD_SIZE", world);
  set("LOCAL_RANK", Number(local));
  set("LOCAL_WORLD_SIZE", here);
  set("NODE_RANK", pod);
  set("GROUP_RANK", pod);
  set("GROUP_WORLD_SIZE", Number(gang.pods().size()));
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world);
  // Open MPI's and PMI's, for programs that only read them.
  set("OMPI_COMM_WORLD_RANK", rank);
  set("OMPI_COMM_WORLD_SIZE", world);
  set("OMPI_COMM_WORLD_LOCAL_RANK", Number(local));
  set("OMPI_COMM_WORLD_LOCAL_SIZE", here);
  set("OMPI_COMM_WORLD_NODE_RANK", Number(local));
  set("PMI_RANK", rank);
  set("PMI_SIZE", world);
  SetTensorFlow(order, gang, gang.here().first_rank + local, environment);
  if (!order.spec().gang().no_slurm_environment()) SetSlurmTask(gang, local, environment);
}

}  // namespace

void SetVariable(std::vector<std::string>* environment, const std::string& name, const std::string& value) {
  const std::string prefix = name + "=";
  std::erase_if(*environment, [&](const std::string& e) { return e.starts_with(prefix); });
  environment->push_back(prefix + value);
}

uint32_t MasterPort(uint64_t job) { return 25000 + static_cast<uint32_t>(job % 7000); }

std::vector<std::vector<std::string>> GangEnvironments(const v1::TaskSpec& spec, const Gang& gang,
                                                       const std::vector<std::string>& environment) {
  const v1::StartAttempt& order = spec.order();
  const Environment common = CommonEnvironment(spec, gang, environment);
  std::vector<Environment> out;
  if (Launches(order)) {
    // The processes that count are those that the launcher starts, and it numbers them.
    out.push_back(common);
    if (!order.spec().gang().no_slurm_environment()) SetSlurmTask(gang, 0, &out[0]);
    return out;
  }
  for (uint32_t local = 0; local < Gang::ProcessesHere(order); ++local) {
    out.push_back(common);
    SetRank(order, gang, local, &out.back());
  }
  return out;
}

void SetArrayEnvironment(const v1::TaskSpec& spec, const Gang& gang, std::vector<std::string>* environment) {
  SetVrunArray(spec.order(), environment);
  if (spec.order().spec().gang().no_slurm_environment()) return;
  SetSlurmJob(spec, gang, environment);
  SetSlurmTask(gang, 0, environment);
}

std::string Hostfile(const v1::StartAttempt& order, const Gang& gang) {
  std::string out;
  for (const Gang::Pod& pod : gang.pods()) out += pod.host_name + " slots=" + Number(Slots(order, pod)) + "\n";
  return out;
}

std::string HydraHosts(const v1::StartAttempt& order, const Gang& gang) {
  std::string out;
  for (const Gang::Pod& pod : gang.pods()) out += pod.host_name + ":" + Number(Slots(order, pod)) + "\n";
  return out;
}

}  // namespace vrun::node
