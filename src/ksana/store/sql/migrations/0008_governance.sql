-- Governance: jobs, objects, gates, and the audit with its chains and anchors.
-- lane (NULL unless queued): 0 waits for its time; 1 deferred by a gate. due_sec is run_at in whole seconds; urgency 0 is the
-- highest priority. A row that is not queued leaves every index that a pull reads.

CREATE TABLE governance_jobs (
  seq {id},
  job_id VARCHAR(64) NOT NULL,
  object_type VARCHAR(16) NOT NULL,
  object_id VARCHAR(200) NOT NULL,
  action VARCHAR(16) NOT NULL,
  urgency SMALLINT NOT NULL,
  run_at BIGINT NOT NULL,
  attempt INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  idempotency_key VARCHAR(255) NOT NULL,
  status VARCHAR(16) NOT NULL,
  last_error VARCHAR(1024),
  lane SMALLINT,
  reason VARCHAR(32),
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  finished_at BIGINT,
  worker_id VARCHAR(128),
  lease_token BIGINT NOT NULL,
  lease_expires_at BIGINT,
  deferrals INTEGER NOT NULL,
  gate_key VARCHAR(64),
  follow_key VARCHAR(220),
  audit_event_id VARCHAR(128),
  next_action_at BIGINT,
  follow_up_id VARCHAR(64),
  ack_digest CHAR(32),
  is_follow_up SMALLINT NOT NULL,
  due_sec BIGINT NOT NULL,
  class_no SMALLINT NOT NULL,
  CHECK (lane IS NULL OR status = 'queued'),
  CHECK (status <> 'running' OR lease_expires_at IS NOT NULL)
) {table_options};

CREATE UNIQUE INDEX governance_jobs_id ON governance_jobs (job_id);
CREATE UNIQUE INDEX governance_jobs_key ON governance_jobs (idempotency_key, object_type);
CREATE UNIQUE INDEX governance_jobs_follow ON governance_jobs (follow_key) {where follow_key IS NOT NULL};
CREATE INDEX governance_jobs_due ON governance_jobs (lane, due_sec, urgency, seq) {where lane = 0};
CREATE INDEX governance_jobs_class ON governance_jobs (lane, class_no, due_sec, seq) {where lane = 0};
CREATE INDEX governance_jobs_deferred ON governance_jobs (lane, gate_key, seq) {where lane = 1};
CREATE INDEX governance_jobs_lease ON governance_jobs (lease_expires_at) {where lease_expires_at IS NOT NULL};
CREATE INDEX governance_jobs_finished ON governance_jobs (finished_at) {where finished_at IS NOT NULL};
CREATE INDEX governance_jobs_status ON governance_jobs (status, seq);
CREATE INDEX governance_jobs_object ON governance_jobs (object_id, object_type, seq);

CREATE TABLE governance_objects (
  object_key VARCHAR(220) NOT NULL PRIMARY KEY,
  object_type VARCHAR(16) NOT NULL,
  object_id VARCHAR(200) NOT NULL,
  status VARCHAR(24) NOT NULL,
  epistemic_state VARCHAR(16),
  unknown_type VARCHAR(24),
  risk_tier VARCHAR(8) NOT NULL,
  impact_tier VARCHAR(8) NOT NULL,
  auto_verify_budget INTEGER NOT NULL,
  verify_count INTEGER NOT NULL,
  uncertainty_ttl_us BIGINT,
  review_due_at BIGINT,
  expires_at BIGINT,
  next_action_at BIGINT,
  next_action VARCHAR(16),
  weight DOUBLE PRECISION NOT NULL,
  half_life_us BIGINT,
  reinforcement_count INTEGER NOT NULL,
  last_reinforced_at BIGINT,
  decayed_at BIGINT,
  evidence_refs {bigtext} NOT NULL,
  data {bigtext} NOT NULL,
  version BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CHECK (auto_verify_budget >= 0)
) {table_options};

CREATE TABLE governance_gates (
  gate VARCHAR(16) NOT NULL,
  scope VARCHAR(48) NOT NULL,
  state VARCHAR(8) NOT NULL,
  reason VARCHAR(1024),
  updated_at BIGINT NOT NULL,
  updated_by VARCHAR(128),
  PRIMARY KEY (gate, scope)
) {table_options};

-- Each gate has its setting for everything from the start: whoever hands out jobs of high risk locks these rows.
INSERT INTO governance_gates (gate, scope, state, updated_at)
SELECT gate, '', 'open', 0 FROM (SELECT 'cognition' AS gate UNION ALL SELECT 'persona') AS gates
WHERE NOT EXISTS (SELECT 1 FROM governance_gates);

-- place is the chain's number times 2^44 plus the entry's number in it: rows of a chain lie one after the other, each page full.
CREATE TABLE audit_events (
  place {id},
  id VARCHAR(32) NOT NULL,
  event_type VARCHAR(32) NOT NULL,
  actor VARCHAR(128) NOT NULL,
  object_type VARCHAR(16),
  object_id VARCHAR(200),
  before_json {bigtext},
  after_json {bigtext},
  reason VARCHAR(1024),
  evidence_refs {bigtext},
  job_id VARCHAR(64),
  correlation_id VARCHAR(128),
  decision_trace_id VARCHAR(128),
  ts BIGINT NOT NULL,
  prev_hash CHAR(64) NOT NULL,
  hash CHAR(64) NOT NULL
) {table_options};

CREATE INDEX audit_events_time ON audit_events (ts, place);
CREATE INDEX audit_events_object ON audit_events (object_id, object_type, ts);

-- One row for each chain: its end, and where it begins since old entries were removed. A writer takes any that is free.
CREATE TABLE audit_chains (
  chain SMALLINT NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL,
  hash CHAR(64) NOT NULL,
  base_seq BIGINT NOT NULL,
  base_hash CHAR(64) NOT NULL
) {table_options};

INSERT INTO audit_chains (chain, seq, hash, base_seq, base_hash)
SELECT tens.n * 8 + ones.n, 0, '0000000000000000000000000000000000000000000000000000000000000000',
  0, '0000000000000000000000000000000000000000000000000000000000000000'
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
  UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS ones,
  (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS tens
WHERE NOT EXISTS (SELECT 1 FROM audit_chains);

CREATE TABLE audit_anchors (
  number BIGINT NOT NULL PRIMARY KEY,
  at BIGINT NOT NULL,
  heads_json {bigtext} NOT NULL,
  prev_hash CHAR(64) NOT NULL,
  hash CHAR(64) NOT NULL
) {table_options};
