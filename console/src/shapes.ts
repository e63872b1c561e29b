// The parts of the API's answers that the console shows.
export interface Retry {
  max_retries: number;
  initial_delay: number;
  strategy: string;
  max_delay: number;
}

export interface Schedule {
  kind: "cron" | "every" | "once";
  expr?: string;
  every?: string;
  run_at?: string;
  timezone?: string;
  start_at?: string | null;
  end_at?: string | null;
}

export interface Task {
  id: number;
  job_id: string;
  name: string;
  description: string;
  type: string;
  queue: unknown;
  node: unknown;
  cron_expr: string | null;
  timezone: string;
  schedule: Schedule;
  http_method: string;
  exec_type: string;
  target_url: string;
  headers: Record<string, string>;
  body_template: string | null;
  timeout_seconds: number;
  retry_policy: Retry;
  max_concurrency: number;
  concurrency_policy: string;
  misfire_policy: string;
  catchup_limit: number;
  tags: string[];
  status: "ENABLED" | "DISABLED";
  version: number;
  created_at: string;
  updated_at: string;
  next_run_at: string | null;
  last_run_at: string | null;
  last_status: string;
  last_error: string;
  runs_fired: number;
}

export interface Page<T> {
  items: T[];
  total: number;
  next_cursor: number | null;
}

export interface Timing {
  dns_ms: number;
  connect_ms: number;
  tls_ms: number;
  first_byte_ms: number;
  total_ms: number;
}

export interface Attempt {
  attempt: number;
  started_at: string;
  ended_at: string | null;
  status: string;
  response_code: number | null;
  error: string | null;
  instance: string;
  timing?: Timing | null;
}

export interface Run {
  id: number;
  uid: string;
  task_id: number;
  task_name: string | null;
  task_target: string | null;
  scheduled_time: string;
  start_time: string | null;
  end_time: string | null;
  status: string;
  reason: string | null;
  attempt: number;
  trigger: string;
  exec_type: string;
  retry_of: number | null;
  request_headers: Record<string, string> | null;
  request_body: string | null;
  response_code: number | null;
  response_body: string | null;
  response_truncated: boolean;
  error_message: string | null;
  next_retry_time: string | null;
  callback_deadline: string | null;
  trace_id: string;
  handed_to: { type: string; job_id: string } | null;
  attempts: Attempt[];
  callbacks?: { id: number; received_at: string; body: string; status: string }[];
}

export interface Reason {
  code: string;
  message: string;
}

export interface Moment {
  at: string;
  type: string;
  words: string;
  reason: string | null;
}

export interface RunWhy {
  summary: string;
  reasons: Reason[];
  waits_for: { what: string; until?: string | null } | null;
  timeline: Moment[];
}

export interface TaskWhy {
  at: string;
  verdict: string;
  summary: string;
  reasons: Reason[];
  slot: string | null;
  run: { id: number; status: string } | null;
  next_run_at: string | null;
  decision: { source: string; action: string; reason: string; inputs: Record<string, unknown> } | null;
}

export interface Preview {
  description: string;
  next: { at: string; local: string; offset: string; note: string | null }[];
}

export interface Letter {
  id: number;
  surface: string;
  entity_type: string;
  entity_id: string;
  source: string;
  status: string;
  error: string;
  died_at: string;
}

export interface Group {
  surface: string;
  group: string;
  error: string;
  count: number;
  is_capped: boolean;
  first_at: string;
  last_at: string;
  newest: Letter;
}

export interface Job {
  job_id: string;
  addon_id: string;
  job_type: string;
  priority: string;
  cost_units: number;
  payload: unknown;
  constraints: unknown;
  state: string;
  created_at: string;
  claimed_by: string | null;
  claim_expires_at: string | null;
  lease_id: string | null;
  attempts: number;
  max_attempts: number;
  run_at: string | null;
  next_retry_at: string | null;
  fairness_key: string | null;
  cancel_requested: boolean;
  progress: number | null;
  note: string | null;
  started_at: string | null;
  finished_at: string | null;
}

export interface QueueSnapshot {
  capacity: { total: number; used: number; reserved: number };
  jobs: Record<string, number>;
  leases: Record<string, number>;
}

export interface Stats {
  version: string;
  now: string;
  store: { kind: string; ok: boolean; reason: string | null; commits: number };
  tasks?: { by_status: Record<string, number>; callbacks_pending: number };
  queue?: QueueSnapshot;
  governance?: GovernanceFigures;
  nodes?: Record<string, number>;
}

export interface GovernanceFigures {
  jobs_due_count: number;
  jobs_lag_seconds: number;
  job_success_rate: number | null;
  job_retry_rate: number | null;
  dead_letter_count: number;
  jobs_running_count: number;
  jobs_deferred_count: number;
  window_sec: number;
}

export interface Ready {
  status: string;
  checks: Record<string, string>;
  problems: string[];
}

export interface Cluster {
  instance_id: string;
  coordination: { ok: boolean; reason: string | null; durable: boolean; shared: boolean };
  instances: { instance_id: string; host: string; version: string; started_at: string; nodes: number; sessions: number }[];
  inbox: Record<string, number>;
}

export interface LedgerSums {
  expected: number;
  fired: number;
  by_status: Record<string, number>;
  skipped: Record<string, number>;
  forgotten: number;
  pending: number;
  missing: number;
}

export interface LedgerRow extends LedgerSums {
  task_id: number;
  job_id: string;
  name: string;
  deleted: boolean;
  from: string;
  to: string;
  known_from: string | null;
}

export interface Ledger {
  from: string;
  to: string;
  total: LedgerSums;
  tasks: LedgerRow[];
  next_cursor: string | null;
}

export interface TriedRun {
  task: number;
  slot: string;
  decided_at: string;
  trigger: string;
  reason: string;
  status: string;
  attempts: { started_at: string; ended_at: string | null; end: string | null }[];
  ended_at: string | null;
}

export interface Simulated {
  from: string;
  to: string;
  cut: boolean;
  most_calls: number;
  most_ready: number;
  tasks: { name: string; fired: number; skipped: Record<string, number>; by_status: Record<string, number>; attempts: number; most_active: number; most_waiting: number; longest_wait_sec: number }[];
  runs: TriedRun[];
  runs_left_out: number;
}

export interface HostAhead {
  host: string;
  firings: number;
  counts: number[];
  mean_sec: number | null;
  busy_sec: number | null;
}

export interface Forecast {
  from: string;
  to: string;
  bucket_sec: number;
  firings: number;
  counts: number[];
  hosts: HostAhead[];
  elsewhere: number;
  busiest: { task_id: number; job_id: string; name: string; host: string; firings: number; mean_sec: number | null }[];
  tasks_counted: number;
  complete: boolean;
}
