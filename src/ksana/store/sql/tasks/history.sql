-- History of tasks and runs: what explain asks of it, and what retention removes. Every read goes by an index and is bounded.

-- name: count_waiting_before
-- Runs of the same task that wait for their turn before this one, counted so far and no further.
SELECT COUNT(*) FROM (SELECT id FROM task_runs {force_index task_runs_open} WHERE open_task = :task_id AND status = 'SCHEDULED' AND ready_host IS NULL
  AND is_counted = 1 AND id < :id ORDER BY id LIMIT :limit) AS ahead

-- name: count_ready_before
-- Runs about to start at a host before this one, counted so far and no further.
SELECT COUNT(*) FROM (SELECT id FROM task_runs WHERE ready_host = :host AND id < :id ORDER BY id LIMIT :limit) AS ahead

-- name: lease_of
-- Until when an instance's lease lasts.
SELECT lease_until FROM instances WHERE id = :id

-- name: count_alive
-- Instances that give a sign of life, by the store's clock.
SELECT COUNT(*) FROM instances WHERE stopped_at IS NULL AND lease_until > {now}

-- name: oldest_runs
-- The runs with the lowest ids after one, and which are dead letters. Ids grow with time, so this reads one end of the table.
SELECT id, scheduled_time, end_time, open_task,
  CASE WHEN EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'tasks' AND entity_id = {text task_runs.id}) THEN 1 ELSE 0 END
FROM task_runs WHERE id > :after ORDER BY id LIMIT :limit

-- name: newest_surplus
-- The newest success of a task beyond those kept, looked for among so many of its newest runs.
SELECT id FROM (SELECT id, status FROM task_runs WHERE task_id = :task_id ORDER BY id DESC LIMIT :look) AS newest
WHERE status IN ('SUCCESS', 'CALLBACK_SUCCESS') ORDER BY id DESC LIMIT 1 OFFSET :keep

-- name: list_surplus
-- It and the successes before it, newest first, looked for among so many runs. A run of a slot to come, fired by a clock that was
-- ahead, stays until then: it shows that the slot was fired.
SELECT id FROM (SELECT id, status, slot_at FROM task_runs WHERE task_id = :task_id AND id <= :upto ORDER BY id DESC LIMIT :look) AS older
WHERE status IN ('SUCCESS', 'CALLBACK_SUCCESS') AND (slot_at IS NULL OR slot_at <= {now}) ORDER BY id DESC LIMIT :limit

-- name: list_limits
-- How much history each task keeps, by id.
SELECT id, options_json FROM tasks WHERE id > :after ORDER BY id LIMIT :limit

-- name: compare_counts
-- Where the counts kept of runs and living tasks differ from the rows, by how much, and what was corrected before: in one
-- statement, so that all are of one instant.
SELECT kind, entry, SUM(counted), SUM(corrected) FROM (
  SELECT 'runs' AS kind, status AS entry, COUNT(*) AS counted, 0 AS corrected FROM task_runs WHERE id > 0 GROUP BY status
  UNION ALL SELECT 'tasks', status, COUNT(*), 0 FROM tasks WHERE deleted = 0 GROUP BY status
  UNION ALL SELECT kind, entry, -n, CASE WHEN shard = :shard THEN n ELSE 0 END FROM row_counts
    WHERE kind IN ('runs', 'tasks')) AS both_sides
GROUP BY kind, entry HAVING SUM(counted) <> 0

-- name: enter_correction
-- The share of corrections, which no connection counts into.
{insert_ignore} row_counts (kind, entry, shard, n) VALUES (:kind, :entry, :shard, 0) {on_conflict_ignore}

-- name: correct_count
-- Set a correction. Guard: nobody set one since the difference was found.
UPDATE row_counts SET n = :n WHERE kind = :kind AND entry = :entry AND shard = :shard AND n = :seen

-- name: lock_removable
-- Which of these runs are finished and no dead letters, held: they are counted before they go.
SELECT id, status FROM task_runs WHERE id {in ids} AND open_task IS NULL
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'tasks' AND entity_id = {text task_runs.id}) ORDER BY id {for_update}

-- name: delete_run
-- Forget a run. Guard: finished, and no dead letter.
DELETE FROM task_runs WHERE id = :id AND open_task IS NULL
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'tasks' AND entity_id = {text task_runs.id})

-- name: delete_callbacks
-- Forget a run's callbacks. Guard: the run is gone.
DELETE FROM async_callbacks WHERE task_run_id = :id AND NOT EXISTS (SELECT 1 FROM task_runs WHERE id = :id)
