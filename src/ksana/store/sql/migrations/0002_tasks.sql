-- Tasks and runs (T and C), callbacks, remembered answers of idempotent writes.

CREATE TABLE tasks (
  id {id},
  job_id VARCHAR(160) NOT NULL,
  dialect CHAR(1) NOT NULL,
  name VARCHAR(128) NOT NULL,
  living_name VARCHAR(128),
  description VARCHAR(512) NOT NULL,
  cron_expr VARCHAR(255),
  timezone VARCHAR(64) NOT NULL,
  schedule_json {bigtext} NOT NULL,
  exec_type VARCHAR(8) NOT NULL,
  http_method VARCHAR(8) NOT NULL,
  target_url VARCHAR(2048) NOT NULL,
  headers_json {bigtext} NOT NULL,
  body_template {bigtext},
  timeout_seconds DOUBLE PRECISION NOT NULL,
  retry_policy_json {bigtext} NOT NULL,
  max_concurrency INTEGER NOT NULL,
  concurrency_policy VARCHAR(16) NOT NULL,
  misfire_policy VARCHAR(16) NOT NULL,
  catchup_limit INTEGER NOT NULL,
  callback_method VARCHAR(8) NOT NULL,
  callback_timeout_sec DOUBLE PRECISION NOT NULL,
  tags VARCHAR(1024) NOT NULL,
  options_json {bigtext} NOT NULL,
  status VARCHAR(16) NOT NULL,
  version INTEGER NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  deleted SMALLINT NOT NULL,
  next_slot_at BIGINT,
  fire_at BIGINT,
  runs_fired BIGINT NOT NULL,
  last_run_at BIGINT,
  last_status VARCHAR(24) NOT NULL,
  last_error VARCHAR(1024) NOT NULL
) {table_options};

CREATE UNIQUE INDEX tasks_job_id ON tasks (job_id);

CREATE UNIQUE INDEX tasks_living_name ON tasks (living_name);

CREATE INDEX tasks_due ON tasks (fire_at) {where fire_at IS NOT NULL};

CREATE INDEX tasks_status ON tasks (deleted, status);

CREATE TABLE task_runs (
  id {id},
  uid CHAR(32) NOT NULL,
  task_id BIGINT NOT NULL,
  open_task BIGINT,
  slot_at BIGINT,
  scheduled_time BIGINT NOT NULL,
  start_time BIGINT,
  end_time BIGINT,
  status VARCHAR(20) NOT NULL,
  attempt INTEGER NOT NULL,
  trigger_kind VARCHAR(8) NOT NULL,
  exec_type VARCHAR(8) NOT NULL,
  is_counted SMALLINT NOT NULL,
  host VARCHAR(255) NOT NULL,
  ready_host VARCHAR(255),
  wake_at BIGINT,
  held_by VARCHAR(128),
  token BIGINT NOT NULL,
  request_headers {bigtext},
  request_body {bigtext},
  response_code INTEGER,
  response_body {bigtext},
  response_truncated SMALLINT DEFAULT 0 NOT NULL,
  response_encoding VARCHAR(16),
  error_message VARCHAR(1024),
  reason VARCHAR(48),
  next_retry_time BIGINT,
  callback_token CHAR(64),
  callback_deadline BIGINT,
  callback_data {bigtext},
  override_body {bigtext},
  retry_of BIGINT,
  trace_id VARCHAR(64) NOT NULL,
  attempts {bigtext},
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
) {table_options};

CREATE UNIQUE INDEX task_runs_slot ON task_runs (task_id, slot_at);

CREATE UNIQUE INDEX task_runs_uid ON task_runs (uid);

CREATE INDEX task_runs_of_task ON task_runs (task_id, id);

CREATE INDEX task_runs_open ON task_runs (open_task) {where open_task IS NOT NULL};

CREATE INDEX task_runs_ready ON task_runs (ready_host, id) {where ready_host IS NOT NULL};

CREATE INDEX task_runs_wake ON task_runs (wake_at) {where wake_at IS NOT NULL};

CREATE INDEX task_runs_token ON task_runs (callback_token) {where callback_token IS NOT NULL};

CREATE TABLE async_callbacks (
  id {id},
  task_run_id BIGINT NOT NULL,
  received_at BIGINT NOT NULL,
  headers_json {bigtext} NOT NULL,
  body {bigtext} NOT NULL,
  status VARCHAR(16) NOT NULL
) {table_options};

CREATE INDEX async_callbacks_run ON async_callbacks (task_run_id, id);
