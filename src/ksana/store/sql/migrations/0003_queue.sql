-- The queue: jobs, leases, lines, capacity, gauges.
-- lane (NULL once ended): 0 scheduled, waits for its time; 1 ready; 2 claimed; 3 waits for capacity; 4 running.
-- A finished row leaves every index that a claim reads; a future row is in one of them only.

CREATE TABLE scheduler_job_runs (
  seq {id},
  job_id CHAR(36) NOT NULL,
  addon_id VARCHAR(128) NOT NULL,
  job_type VARCHAR(128) NOT NULL,
  priority VARCHAR(8) NOT NULL,
  cost_units BIGINT NOT NULL,
  constraints_json {bigtext} NOT NULL,
  payload_json {bigtext} NOT NULL,
  state VARCHAR(16) NOT NULL,
  attempts INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  run_at BIGINT,
  claimed_by VARCHAR(128),
  claim_expires_at BIGINT,
  lease_id CHAR(36),
  next_retry_at BIGINT,
  fairness_key VARCHAR(128),
  client_request_id VARCHAR(255),
  cancel_requested SMALLINT NOT NULL,
  cancel_reason VARCHAR(1024),
  progress DOUBLE PRECISION,
  note VARCHAR(1024),
  started_at BIGINT,
  finished_at BIGINT,
  final_status VARCHAR(16),
  error_text VARCHAR(1024),
  result_json {bigtext},
  metrics_json {bigtext},
  lane SMALLINT,
  urgency SMALLINT NOT NULL,
  line_id BIGINT NOT NULL,
  turn BIGINT NOT NULL,
  due_at BIGINT NOT NULL,
  pending_at BIGINT,
  CHECK (lane IS NOT NULL OR finished_at IS NOT NULL)
) {table_options};

CREATE UNIQUE INDEX job_runs_id ON scheduler_job_runs (job_id);
CREATE UNIQUE INDEX job_runs_request ON scheduler_job_runs (addon_id, client_request_id) {where client_request_id IS NOT NULL};
CREATE INDEX job_runs_scheduled ON scheduler_job_runs (lane, due_at, seq) {where lane = 0};
CREATE INDEX job_runs_ready ON scheduler_job_runs (lane, urgency, turn, seq) {where lane = 1};
CREATE INDEX job_runs_line ON scheduler_job_runs (lane, line_id, urgency, turn, seq) {where lane = 1};
CREATE INDEX job_runs_key ON scheduler_job_runs (lane, fairness_key, urgency, turn) {where lane = 1 AND fairness_key IS NOT NULL};
CREATE INDEX job_runs_pending ON scheduler_job_runs (lane, urgency, pending_at) {where lane = 3};
CREATE INDEX job_runs_claim ON scheduler_job_runs (claim_expires_at) {where claim_expires_at IS NOT NULL};
CREATE INDEX job_runs_finished ON scheduler_job_runs (finished_at) {where finished_at IS NOT NULL};
CREATE INDEX job_runs_state ON scheduler_job_runs (state, seq);
CREATE INDEX job_runs_addon ON scheduler_job_runs (addon_id, seq);

CREATE TABLE scheduler_lease_runs (
  lease_id CHAR(36) NOT NULL PRIMARY KEY,
  job_id CHAR(36) NOT NULL,
  job_seq BIGINT NOT NULL,
  addon_id VARCHAR(128) NOT NULL,
  worker_id VARCHAR(128),
  cost_units BIGINT NOT NULL,
  ttl_sec DOUBLE PRECISION NOT NULL,
  state VARCHAR(8) NOT NULL,
  granted_at BIGINT NOT NULL,
  last_heartbeat_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  released_at BIGINT,
  release_status VARCHAR(16),
  release_digest CHAR(32)
) {clustered_options};

CREATE INDEX lease_runs_job ON scheduler_lease_runs (job_seq);
CREATE INDEX lease_runs_active ON scheduler_lease_runs (state, expires_at) {where state = 'ACTIVE'};

CREATE TABLE queue_lines (
  id BIGINT NOT NULL PRIMARY KEY,
  addon_id VARCHAR(128) NOT NULL,
  job_type VARCHAR(128) NOT NULL,
  cost_units BIGINT NOT NULL,
  needs_json {bigtext} NOT NULL
) {table_options};

CREATE TABLE queue_capacity (
  id SMALLINT NOT NULL PRIMARY KEY,
  used BIGINT NOT NULL,
  active BIGINT NOT NULL,
  reserved_units BIGINT NOT NULL,
  reserved_for CHAR(36),
  reserved_urgency SMALLINT NOT NULL,
  reserved_until BIGINT NOT NULL
) {table_options};

INSERT INTO queue_capacity (id, used, active, reserved_units, reserved_for, reserved_urgency, reserved_until)
SELECT 1, 0, 0, 0, NULL, 0, 0 FROM (SELECT 1 AS one) AS first_row WHERE NOT EXISTS (SELECT 1 FROM queue_capacity);

CREATE TABLE queue_gauges (
  shard BIGINT NOT NULL PRIMARY KEY,
  queued BIGINT NOT NULL,
  running BIGINT NOT NULL,
  arrivals BIGINT NOT NULL
) {table_options};

-- Answers remembered for a day by Idempotency-Key, on every surface that takes one.
CREATE TABLE idempotency_keys (
  scope VARCHAR(48) NOT NULL,
  key_hash CHAR(64) NOT NULL,
  body_hash CHAR(64) NOT NULL,
  answer {bigtext} NOT NULL,
  expires_at BIGINT NOT NULL,
  PRIMARY KEY (scope, key_hash)
) {table_options};

CREATE INDEX idempotency_keys_age ON idempotency_keys (expires_at);
