-- MySQL and MariaDB have no partial indexes. Indexes that begin with a job's position had an entry for every job, and every change of the
-- position moved six of them. Each has a column of its own now, computed, which is NULL for jobs that the index is not about: a job that is
-- taken and done moves the entries of those indexes alone that it was in.

{mysql ALTER TABLE scheduler_job_runs
  DROP INDEX job_runs_scheduled, DROP INDEX job_runs_ready, DROP INDEX job_runs_class, DROP INDEX job_runs_key, DROP INDEX job_runs_pending,
  DROP INDEX job_runs_leased,
  ADD COLUMN scheduled_at BIGINT AS (CASE WHEN position = 0 THEN due_at END) STORED,
  ADD COLUMN ready_urgency SMALLINT AS (CASE WHEN position = 1 THEN urgency END) STORED,
  ADD COLUMN ready_class BIGINT AS (CASE WHEN position = 1 THEN class_id END) STORED,
  ADD COLUMN ready_key VARCHAR(128) AS (CASE WHEN position = 1 THEN fairness_key END) STORED,
  ADD COLUMN pending_urgency SMALLINT AS (CASE WHEN position = 3 THEN urgency END) STORED,
  ADD COLUMN leased_until BIGINT AS (CASE WHEN position = 4 THEN lease_expires_at END) STORED,
  ADD INDEX job_runs_scheduled (scheduled_at, seq),
  ADD INDEX job_runs_ready (ready_urgency, turn, seq),
  ADD INDEX job_runs_class (ready_class, urgency, turn, seq),
  ADD INDEX job_runs_key (ready_key, urgency, turn),
  ADD INDEX job_runs_pending (pending_urgency, pending_at),
  ADD INDEX job_runs_leased (leased_until)};
