-- The words of the code: a job's position (it was `lane`), its class (it was `line_id`, of `queue_lines`). Renaming touches no row. MySQL 8
-- renames no column that a CHECK names, so there the check goes; MariaDB calls it by another name and keeps it.

{mysql ALTER TABLE scheduler_job_runs DROP CONSTRAINT scheduler_job_runs_chk_1};
ALTER TABLE scheduler_job_runs RENAME COLUMN lane TO position;
ALTER TABLE scheduler_job_runs RENAME COLUMN line_id TO class_id;
ALTER TABLE queue_lines RENAME TO job_classes;

{postgres ALTER INDEX job_runs_line RENAME TO job_runs_class};
{mysql ALTER TABLE scheduler_job_runs RENAME INDEX job_runs_line TO job_runs_class};
{sqlite DROP INDEX job_runs_line};
{sqlite CREATE INDEX job_runs_class ON scheduler_job_runs (position, class_id, urgency, turn, seq) WHERE position = 1};

{mysql ALTER TABLE governance_jobs DROP CONSTRAINT governance_jobs_chk_1};
ALTER TABLE governance_jobs RENAME COLUMN lane TO position;
