-- A job's last lease lies in the job's row: granting and ending it is the same write as the job's move. Leases that ended before it, of jobs
-- that were queued again, lie in `past_leases`, and so do all from before this version. The id of a new lease carries the job's number and
-- is of version 8, which tells where it lies. `scheduler_lease_runs` is a view of both.

ALTER TABLE scheduler_job_runs ADD COLUMN lease_token BIGINT NOT NULL DEFAULT 0;
ALTER TABLE scheduler_job_runs ADD COLUMN lease_ttl_sec DOUBLE PRECISION;
ALTER TABLE scheduler_job_runs ADD COLUMN heartbeat_at BIGINT;
ALTER TABLE scheduler_job_runs ADD COLUMN lease_expires_at BIGINT;
ALTER TABLE scheduler_job_runs ADD COLUMN release_status VARCHAR(16);
ALTER TABLE scheduler_job_runs ADD COLUMN release_digest CHAR(32);

{sqlite DROP INDEX lease_runs_active};
{postgres DROP INDEX lease_runs_active};
{mysql ALTER TABLE scheduler_lease_runs DROP INDEX lease_runs_active};

ALTER TABLE scheduler_lease_runs RENAME TO past_leases;

{postgres ALTER INDEX scheduler_lease_runs_pkey RENAME TO past_leases_pkey};

{sqlite CREATE INDEX job_runs_leased ON scheduler_job_runs (position, lease_expires_at) WHERE position = 4};
{mysql CREATE INDEX job_runs_leased ON scheduler_job_runs (position, lease_expires_at)};
{postgres CREATE INDEX job_runs_leased ON scheduler_job_runs (lease_expires_at) WHERE position = 4};

UPDATE scheduler_job_runs SET
  lease_token = (SELECT l.lease_token FROM past_leases AS l WHERE l.lease_id = scheduler_job_runs.lease_id),
  lease_ttl_sec = (SELECT l.ttl_sec FROM past_leases AS l WHERE l.lease_id = scheduler_job_runs.lease_id),
  heartbeat_at = (SELECT l.last_heartbeat_at FROM past_leases AS l WHERE l.lease_id = scheduler_job_runs.lease_id),
  lease_expires_at = (SELECT l.expires_at FROM past_leases AS l WHERE l.lease_id = scheduler_job_runs.lease_id)
WHERE position = 4 AND lease_id IN (SELECT lease_id FROM past_leases);

CREATE VIEW scheduler_lease_runs (lease_id, job_id, job_seq, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at,
  expires_at, released_at, release_status, release_digest, lease_token) AS
SELECT lease_id, job_id, job_seq, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at, released_at,
  release_status, release_digest, lease_token
FROM past_leases
UNION ALL
SELECT lease_id, job_id, seq, addon_id, claimed_by, cost_units, lease_ttl_sec,
  CASE WHEN position = 4 THEN 'ACTIVE' WHEN release_status IS NULL THEN 'EXPIRED' ELSE 'RELEASED' END, started_at, heartbeat_at,
  lease_expires_at, finished_at, release_status, release_digest, lease_token
FROM scheduler_job_runs WHERE heartbeat_at IS NOT NULL AND SUBSTR(lease_id, 15, 1) = '8';
