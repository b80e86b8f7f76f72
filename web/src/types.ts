// SPDX-License-Identifier: Apache-2.0
// What the controller answers, as far as the pages use it: /api/v1/openapi.json has all of it. Times end in _us.
export interface Usage { metered_us: number; busy_us: number; sm_us?: number; utilization_percent: number; memory_bytes: number; memory_peak_bytes: number; energy_mj: number }
export interface Resources { milli_cpus: number; memory_bytes: number; gpus: number; gpu_type: string; gpu_milli: number; mig_profile: string }
export interface Exit { kind: string; exit_code: number; signal: number; reason: string; node: string; cpu_us: number; peak_memory_bytes: number; started_us: number; ended_us: number }
export interface Pod { pod: number; node: string; gpu_mask: number; state: string; exit?: Exit; gpu_usage?: Usage }
export interface Attempt { attempt: number; node: string; state: string; placed_us: number; ended_us: number; reason: string }
export interface Job {
  job: number; name: string; pool: string; user: string; state: string; node: string; attempt: number;
  submitted_us: number; started_us: number; ended_us: number; argv: string[]; directory: string; reason: string;
  resources: Resources; exit?: Exit; queue_position: number; attempts: Attempt[]; pods: Pod[]; gang?: { pods: number; ranks_per_pod: number };
  scheduling: { class: string; team: string; hold: boolean; limit_s: number; deadline_us: number; requeue?: boolean };
  saved_us: number; lost_us: number; array: number; array_index: number; gpu_usage?: Usage;
  cost?: { gpu_ms: number; lost_gpu_ms: number; cost_micros: number; lost_cost_micros: number; currency: string };
  array_info?: { waiting: number; running: number; completed: number; failed: number };
}
export interface JobPage { jobs: Job[]; next?: number }
export interface CellNode { name: string; pool: string; state: string; reason: string; gpu_type: string; cells: string; utilization_percent: number[]; users: number[]; jobs: number }
export interface Sample { at_us: number; gpu_milli: number; allocated_milli: number; busy_milli: number; waiting: number }
export interface Outcome { name: string; jobs: number; left_out: number; avg_wait_s: number; p50_wait_s: number; p90_wait_s: number; utilization: number; gpu_hours: number; makespan_s: number; preemptions: number; lost_work_percent: number;
  teams: { team: string; jobs: number; gpu_hours: number; p50_wait_s: number; p90_wait_s: number }[] }
export interface WhatIf { id: number; request?: { days: number; teams: string; nodes: string; policy: string }; state: string; by: string; at_us: number; ended_us: number; done_permille: number; problem: string; note: string;
  jobs: number; gpus: number; changed_gpus: number; outcomes: Outcome[] }
export interface WhatIfList { runs: WhatIf[]; problem: string; may_start: boolean }
export interface ClusterNow {
  money?: { currency: string; allocated_hour_micros: number; idle_hour_micros: number; measured: boolean; lost_day_micros: number }; free_gpus: number; scattered_gpus: number;
  at_us: number; nodes: CellNode[]; running: number; waiting: number; since_us: number; history: Sample[];
  queue: { pool: string; class: string; jobs: number; gpu_milli: number; oldest_us: number }[];
  preemptions: { at_us: number; job: number; attempt: number; reason: string; user: string; team: string; name: string }[];
}
export interface GpuUser { gpu: number; job: number; pod: number; user: string; team: string; name: string; milli: number; mig_profile: string; usage?: Usage }
export interface Node {
  name: string; pool: string; state: string; total: Resources; used: Resources; addresses: string[]; last_seen_us: number; jobs: number; version: string; reason: string;
  facts: { rack: string; zone: string; island: string; labels: string[]; taints: string[]; bad_gpus: number; gpu_driver: string;
    gpus: { uuid: string; product: string; type: string; memory_bytes: number; problem: string }[] };
  gpu_users: GpuUser[];
}
export interface Team { name: string; parent: string; weight_milli: number; used_milli: number; waiting_milli: number; fair_milli: number; configured: boolean;
  quotas: { gpu_type: string; guarantee_milli: number; limit_milli: number; used_milli: number }[] }
export interface TeamUses {
  uses: { team: string; user: string; running: number; gpu_milli: number; waiting: number; waiting_milli: number; oldest_us: number }[];
  waits: { team: string; starts: number; median_us: number; p90_us: number }[]; since_us: number;
}
export interface Why {
  summary: string; queue_position: number; queue_length: number; blockers: { kind: string; text: string; other_job: number }[]; starts_now: string[];
  expected_us: number; expected_why: string; late_us: number; confidence_percent: number; deadline: string; decisions: { at_us: number; kind: string; other_job: number }[];
}
export interface Me { name: string; role: string; teams: string[]; leads: string[]; visibility: string; commands: string; max_class: string; jobs: number; most_jobs: number }
export interface Token { name: string; user: string; write: boolean; created_us: number; expires_us: number }
