-- Classes of jobs go when nobody uses them any more. Those with scheduled jobs stay until an hour after the last of all such jobs is due.
-- `queue_gauges.classes` only grows: it changes whenever classes are entered, so that nobody counts them.

ALTER TABLE job_classes ADD COLUMN used_until BIGINT NOT NULL DEFAULT 0;
UPDATE job_classes SET used_until = (SELECT COALESCE(MAX(due_at), 0) + 3600000000 FROM scheduler_job_runs WHERE position = 0)
WHERE id IN (SELECT class_id FROM scheduler_job_runs WHERE position = 0);
CREATE INDEX job_classes_end ON job_classes (used_until, id);

ALTER TABLE queue_gauges ADD COLUMN classes BIGINT NOT NULL DEFAULT 0;
