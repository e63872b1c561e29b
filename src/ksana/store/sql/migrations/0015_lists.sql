-- Lists whose pages cost the same at a thousand rows and at a million. `row_counts` has how many living tasks and runs there are by
-- status, in shares (shard) that are added up: a list shows its total without counting. Runs are listed by status and by scheduled time.

CREATE TABLE row_counts (
  kind VARCHAR(16) NOT NULL,
  entry VARCHAR(20) NOT NULL,
  shard SMALLINT NOT NULL,
  n BIGINT NOT NULL,
  PRIMARY KEY (kind, entry, shard)
) {clustered_options};

CREATE INDEX task_runs_status ON task_runs (status, id);

CREATE INDEX task_runs_time ON task_runs (scheduled_time, id);

{postgres DROP INDEX tasks_status};
{postgres CREATE INDEX tasks_status ON tasks (deleted, status, id)};

{insert_ignore} row_counts (kind, entry, shard, n)
SELECT 'tasks', status, 0, COUNT(*) FROM tasks WHERE deleted = 0 GROUP BY status {on_conflict_ignore};

{insert_ignore} row_counts (kind, entry, shard, n)
SELECT 'runs', status, 0, COUNT(*) FROM task_runs WHERE id > 0 GROUP BY status {on_conflict_ignore};
