-- The house: events, instances, locks, rollups, API keys, commit marks.

CREATE TABLE scheduler_events (
  id {id},
  ts BIGINT NOT NULL,
  entity_type VARCHAR(16) NOT NULL,
  entity_id VARCHAR(255) NOT NULL,
  event_type VARCHAR(48) NOT NULL,
  data_json {bigtext} NOT NULL
) {table_options};

CREATE INDEX scheduler_events_entity ON scheduler_events (entity_id, entity_type, id);

CREATE TABLE instances (
  id VARCHAR(128) NOT NULL PRIMARY KEY,
  host VARCHAR(255) NOT NULL,
  version VARCHAR(64) NOT NULL,
  started_at BIGINT NOT NULL,
  alive_at BIGINT NOT NULL,
  lease_until BIGINT NOT NULL,
  stopped_at BIGINT,
  outage_from BIGINT
) {table_options};

CREATE TABLE scheduler_locks (
  lock_name VARCHAR(64) NOT NULL PRIMARY KEY,
  owner_id VARCHAR(128) NOT NULL,
  expires_at BIGINT NOT NULL
) {table_options};

CREATE TABLE rollups (
  metric VARCHAR(64) NOT NULL,
  minutes SMALLINT NOT NULL,
  bucket_at BIGINT NOT NULL,
  entry VARCHAR(128) NOT NULL,
  n BIGINT NOT NULL,
  total DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (metric, minutes, bucket_at, entry)
) {table_options};

CREATE INDEX rollups_age ON rollups (bucket_at);

CREATE TABLE api_keys (
  id VARCHAR(64) NOT NULL PRIMARY KEY,
  name VARCHAR(128) NOT NULL,
  secret_hash CHAR(64) NOT NULL,
  scopes VARCHAR(1024) NOT NULL,
  created_at BIGINT NOT NULL,
  revoked_at BIGINT,
  last_used_at BIGINT
) {table_options};

CREATE TABLE commit_marks (
  writer VARCHAR(64) NOT NULL PRIMARY KEY,
  mark BIGINT NOT NULL,
  at BIGINT NOT NULL
) {table_options};
