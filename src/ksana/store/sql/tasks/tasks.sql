-- Tasks: definitions, where their schedule stands, and what is due.

-- name: insert_task
-- A new task.
INSERT INTO tasks (job_id, dialect, name, living_name, description, cron_expr, timezone, schedule_json, exec_type, http_method,
  target_url, headers_json, body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy,
  misfire_policy, catchup_limit, callback_method, callback_timeout_sec, tags, options_json, sealed_by, status, version, created_at,
  updated_at, deleted, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error)
VALUES (:job_id, {alike dialect}, :name, {alike living_name}, {alike description}, {alike cron_expr}, {alike timezone}, :schedule_json, {alike exec_type}, {alike http_method},
  :target_url, {alike headers_json}, :body_template, {alike timeout_seconds}, {alike retry_policy_json}, {alike max_concurrency}, {alike concurrency_policy},
  {alike misfire_policy}, {alike catchup_limit}, {alike callback_method}, {alike callback_timeout_sec}, {alike tags}, {alike options_json}, {same sealed_by}, {same status}, {same version},
  {same created_at}, {same updated_at}, 0, :next_slot_at, :fire_at, 0, NULL, {same last_status}, '')

-- name: insert_task_with_id
-- A task whose id is kept: one that comes back from a JSON file.
INSERT INTO tasks (id, job_id, dialect, name, living_name, description, cron_expr, timezone, schedule_json, exec_type,
  http_method, target_url, headers_json, body_template, timeout_seconds, retry_policy_json, max_concurrency,
  concurrency_policy, misfire_policy, catchup_limit, callback_method, callback_timeout_sec, tags, options_json, sealed_by, status,
  version, created_at, updated_at, deleted, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error)
VALUES (:id, :job_id, :dialect, :name, :living_name, :description, :cron_expr, :timezone, :schedule_json, :exec_type,
  :http_method, :target_url, :headers_json, :body_template, :timeout_seconds, :retry_policy_json, :max_concurrency,
  :concurrency_policy, :misfire_policy, :catchup_limit, :callback_method, :callback_timeout_sec, :tags, :options_json, :sealed_by,
  :status, :version, :created_at, :updated_at, 0, :next_slot_at, :fire_at, :runs_fired, :last_run_at, :last_status,
  :last_error)

-- name: change_task
-- A new definition. Guard: living, and the version the change was made from.
UPDATE tasks SET name = :name, living_name = :living_name, description = :description, cron_expr = :cron_expr,
  timezone = :timezone, schedule_json = :schedule_json, exec_type = :exec_type, http_method = :http_method,
  target_url = :target_url, headers_json = :headers_json, body_template = :body_template,
  timeout_seconds = :timeout_seconds, retry_policy_json = :retry_policy_json, max_concurrency = :max_concurrency,
  concurrency_policy = :concurrency_policy, misfire_policy = :misfire_policy, catchup_limit = :catchup_limit,
  callback_method = :callback_method, callback_timeout_sec = :callback_timeout_sec, tags = :tags,
  options_json = :options_json, sealed_by = :sealed_by, status = :status, version = version + 1, updated_at = :updated_at,
  next_slot_at = :next_slot_at, fire_at = :fire_at, runs_fired = :runs_fired, last_status = :last_status
WHERE id = :id AND version = :version AND deleted = 0

-- name: delete_task
-- Soft delete: disarmed, its name and job id free again, its secrets gone. Guard: living.
UPDATE tasks SET deleted = 1, job_id = :gone_job_id, living_name = NULL, fire_at = NULL, next_slot_at = NULL, version = version + 1, updated_at = :at,
  headers_json = :headers_json, body_template = :body_template, options_json = :options_json, sealed_by = :sealed_by
WHERE id = :id AND deleted = 0

-- name: get_task
-- One task by its integer id.
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE id = :id

-- name: lock_task
-- The same, locked: a task's row is the lock for its concurrency.
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE id = :id {for_update}

-- name: lock_tasks
-- Some tasks locked, in the order of their ids.
SELECT id FROM tasks WHERE id {in ids} ORDER BY id {for_update}

-- name: list_tasks
-- Living tasks, oldest first.
-- filter status: AND status = :status
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE deleted = 0 AND id > :after {filters}
ORDER BY id LIMIT :limit

-- name: list_due
-- Where each task stands that is due, earliest first; rows another instance is at are left to it.
SELECT id, version, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE fire_at <= :now
ORDER BY fire_at LIMIT :limit {skip_locked}

-- name: list_due_share
-- The same of one instance's share, and of any share what has been due for too long.
SELECT id, version, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE fire_at <= :now AND (id % :of = :mine OR fire_at <= :left_since)
ORDER BY fire_at LIMIT :limit {skip_locked}

-- name: next_fire_at_share
-- When the next task is due; since when one of our share is, and since when any is.
SELECT (SELECT MIN(fire_at) FROM tasks WHERE fire_at > :now),
  (SELECT fire_at FROM tasks WHERE fire_at <= :now AND id % :of = :mine ORDER BY fire_at LIMIT 1),
  (SELECT MIN(fire_at) FROM tasks WHERE fire_at <= :now)

-- name: next_fire_at
-- When the next task is due.
SELECT MIN(fire_at) FROM tasks WHERE fire_at IS NOT NULL

-- name: advance_task
-- Claim a slot and set the next. Guard: (task, version, slot) unchanged and still enabled.
UPDATE tasks SET next_slot_at = {alike next_slot_at}, fire_at = {alike fire_at}, runs_fired = runs_fired + {same started},
  last_status = CASE WHEN {same last_status} = '' THEN last_status ELSE {same last_status} END
WHERE id = :id AND version = :version AND next_slot_at = :slot AND fire_at IS NOT NULL

-- name: arm_ended_task
-- Arm a task that has no slot left. Guard: still so, enabled, in the version that was read.
UPDATE tasks SET next_slot_at = :slot_at, fire_at = :fire_at
WHERE id = :id AND version = :version AND next_slot_at IS NULL AND status = 'ENABLED' AND deleted = 0

-- name: note_last
-- The latest fact about the runs of some tasks. Guard: not older than what is known.
UPDATE tasks SET last_status = :last_status, last_error = :last_error, last_run_at = :at
WHERE id {in ids} AND (last_run_at IS NULL OR last_run_at <= :at)

-- name: max_id
-- The highest id.
SELECT COALESCE(MAX(id), 0) FROM tasks

-- name: find_id
-- A living task by one of its other names.
-- filter job_id: AND job_id = :job_id
-- filter name: AND living_name = :name
SELECT id FROM tasks WHERE id > 0 {filters}

-- name: list_of
-- Some tasks by id.
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE id {in ids}
