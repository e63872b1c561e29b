-- The forecast: which tasks fire, and how long their runs took. Small columns only; every read is bounded.

-- name: list_armed
-- The armed ones among some tasks, by id.
SELECT id, job_id, name, schedule_json, target_url, options_json, next_slot_at, runs_fired
FROM tasks {force_primary} WHERE id {in ids} AND fire_at IS NOT NULL AND next_slot_at IS NOT NULL ORDER BY id + 0

-- name: list_durations
-- When the newest runs of a task began and ended.
SELECT start_time, end_time FROM (
  SELECT id, start_time, end_time, status FROM task_runs {force_index task_runs_of_task} WHERE {below task_id id task_id}
  {down task_id id} LIMIT :limit) AS newest
WHERE start_time IS NOT NULL AND end_time IS NOT NULL AND status <> 'SKIPPED' AND status <> 'CANCELED'
