-- How the secrets of tasks are stored. `sealed_by` is a key's id, 'clear', 'gone', 'unknown' (written before there were keys), or NULL for
-- a task without any.

-- name: next_seal
-- The next way after one in which secrets are stored: a step along the index.
SELECT MIN(sealed_by) FROM tasks WHERE sealed_by > :after

-- name: count_seal
-- Tasks whose secrets are stored in one way.
SELECT COUNT(*) FROM tasks WHERE sealed_by = :sealed_by

-- name: list_sealed
-- Some of them, by id.
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks WHERE sealed_by = :sealed_by AND id > :after ORDER BY id LIMIT :limit

-- name: reseal_task
-- The same secrets, stored another way. The version stays: nothing changed for anybody. Guard: the version they were read with.
UPDATE tasks SET headers_json = :headers_json, body_template = :body_template, options_json = :options_json,
  sealed_by = :sealed_by, version = version
WHERE id = :id AND version = :version

-- name: drop_override_bodies
-- Forget what runs of a task were sent in place of its secret body.
UPDATE task_runs SET override_body = NULL WHERE task_id = :task_id AND override_body IS NOT NULL
