-- Indexes that only lists use are over an expression, `status || ''`: a planner that knows little of the table took them for hot
-- statements, and walked through all runs of a status where it was asked for those of one task. MariaDB has no such indexes, and is told by
-- each statement which one to use. PostgreSQL reads the unfinished runs of a task in order.

{sqlite DROP INDEX task_runs_status};
{postgres DROP INDEX task_runs_status};
{sqlite CREATE INDEX task_runs_status ON task_runs (status || '', id)};
{postgres CREATE INDEX task_runs_status ON task_runs ((status || ''), id)};

{sqlite DROP INDEX job_runs_state};
{postgres DROP INDEX job_runs_state};
{sqlite CREATE INDEX job_runs_state ON scheduler_job_runs (state || '', seq)};
{postgres CREATE INDEX job_runs_state ON scheduler_job_runs ((state || ''), seq)};

{sqlite DROP INDEX job_runs_addon};
{postgres DROP INDEX job_runs_addon};
{sqlite CREATE INDEX job_runs_addon ON scheduler_job_runs (addon_id || '', seq)};
{postgres CREATE INDEX job_runs_addon ON scheduler_job_runs ((addon_id || ''), seq)};

{postgres DROP INDEX task_runs_open};
{postgres CREATE INDEX task_runs_open ON task_runs (open_task, id) WHERE open_task IS NOT NULL};

-- Rows of these tables are written several times each. PostgreSQL vacuums a table by default when a fifth of it is dead: at a million rows
-- 200,000 dead ones lie in the way of claims and firings until then. Here it comes at a fiftieth, and looks the table over as often. The
-- tables of counts have few rows, each written with every commit: there it comes after so many changes.
{postgres ALTER TABLE scheduler_job_runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)};
{postgres ALTER TABLE scheduler_lease_runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)};
{postgres ALTER TABLE task_runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)};
{postgres ALTER TABLE tasks SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)};
{postgres ALTER TABLE governance_jobs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)};
{postgres ALTER TABLE queue_capacity SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
{postgres ALTER TABLE queue_gauges SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
{postgres ALTER TABLE row_counts SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
{postgres ALTER TABLE commit_marks SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
{postgres ALTER TABLE instances SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)};
