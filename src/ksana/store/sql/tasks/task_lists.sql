-- Pages of the lists of tasks and runs. Each finds the ids of a page first, from an index in its order; the rows are read by id after.
-- Where no index has the filters, a statement looks through so many rows at most (`looked`), and `edge_…` says which one it did not get to.
-- Rows are sorted by `id + 0`, or a database that avoids sorts would walk through all of them for their order.
-- What is looked through is reduced to its id and whether it matches: MySQL writes it into a table of its own first.

-- name: read_runs
-- Runs by id, newest first.
-- large: request_headers, request_body, response_body, callback_data, override_body, attempts
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs {force_primary} WHERE id {in ids} ORDER BY id + 0 DESC

-- name: read_runs_by_time
-- The same, the latest scheduled first.
-- large: request_headers, request_body, response_body, callback_data, override_body, attempts
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs {force_primary} WHERE id {in ids} ORDER BY scheduled_time + 0 DESC, id DESC

-- name: find_runs
-- All runs.
SELECT id FROM task_runs WHERE id < :before ORDER BY id DESC LIMIT :limit OFFSET :skip

-- name: find_runs_of_status
-- Those of one status.
SELECT id FROM task_runs {force_index task_runs_status} WHERE {text_below status id status}
{text_down status id} LIMIT :limit OFFSET :skip

-- name: find_of_task
-- The runs of a task.
SELECT id FROM task_runs {force_index task_runs_of_task} WHERE {below task_id id task_id}
{down task_id id} LIMIT :limit OFFSET :skip

-- name: count_of_task
-- How many a task has, counted so far and no further.
SELECT COUNT(*) FROM (SELECT id FROM task_runs {force_index task_runs_of_task} WHERE {below task_id id task_id}
  {down task_id id} LIMIT :look) AS looked

-- name: find_in_task
-- Among the runs of a task.
-- filter status: AND status = :status
-- filter since: AND scheduled_time >= :since
-- filter until: AND scheduled_time < :until
SELECT id FROM (SELECT id, CASE WHEN id > 0 {filters} THEN 1 ELSE 0 END AS matches FROM task_runs {force_index task_runs_of_task}
  WHERE {below task_id id task_id} {down task_id id} LIMIT :look) AS looked
WHERE matches = 1 ORDER BY id DESC LIMIT :limit OFFSET :skip

-- name: count_in_task
-- How many match among the newest of a task.
-- filter status: AND status = :status
-- filter since: AND scheduled_time >= :since
-- filter until: AND scheduled_time < :until
SELECT COALESCE(SUM(matches), 0) FROM (SELECT CASE WHEN id > 0 {filters} THEN 1 ELSE 0 END AS matches
  FROM task_runs {force_index task_runs_of_task} WHERE {below task_id id task_id} {down task_id id} LIMIT :look) AS looked

-- name: edge_in_task
-- The first run of a task that was not looked at.
SELECT id FROM task_runs {force_index task_runs_of_task} WHERE {below task_id id task_id}
{down task_id id} LIMIT 1 OFFSET :look

-- name: find_in_time
-- Runs of a span of scheduled time.
SELECT scheduled_time, id FROM task_runs {force_index task_runs_time}
WHERE scheduled_time >= :since AND scheduled_time <= :at AND (scheduled_time < :at OR id < :before)
ORDER BY scheduled_time DESC, id DESC LIMIT :limit OFFSET :skip

-- name: count_in_time
-- How many a span has, counted so far and no further.
SELECT COUNT(*) FROM (SELECT id FROM task_runs {force_index task_runs_time}
  WHERE scheduled_time >= :since AND scheduled_time <= :at AND (scheduled_time < :at OR id < :before)
  ORDER BY scheduled_time DESC, id DESC LIMIT :look) AS looked

-- name: find_status_in_time
-- Runs of one status among those of a span.
SELECT scheduled_time, id FROM (SELECT scheduled_time, id, CASE WHEN status = :status THEN 1 ELSE 0 END AS matches FROM task_runs {force_index task_runs_time}
  WHERE scheduled_time >= :since AND scheduled_time <= :at AND (scheduled_time < :at OR id < :before)
  ORDER BY scheduled_time DESC, id DESC LIMIT :look) AS looked
WHERE matches = 1 ORDER BY scheduled_time DESC, id DESC LIMIT :limit OFFSET :skip

-- name: count_status_in_time
-- How many are of one status among the latest of a span.
SELECT COALESCE(SUM(matches), 0) FROM (SELECT CASE WHEN status = :status THEN 1 ELSE 0 END AS matches
  FROM task_runs {force_index task_runs_time}
  WHERE scheduled_time >= :since AND scheduled_time <= :at AND (scheduled_time < :at OR id < :before)
  ORDER BY scheduled_time DESC, id DESC LIMIT :look) AS looked

-- name: edge_in_time
-- The first run of a span that was not looked at.
SELECT scheduled_time, id FROM task_runs {force_index task_runs_time}
WHERE scheduled_time >= :since AND scheduled_time <= :at AND (scheduled_time < :at OR id < :before)
ORDER BY scheduled_time DESC, id DESC LIMIT 1 OFFSET :look

-- name: read_tasks
-- Tasks by id, oldest first.
-- large: schedule_json, headers_json, body_template, options_json
SELECT id, job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  fire_at, runs_fired, last_run_at, last_status, last_error
FROM tasks {force_primary} WHERE id {in ids} ORDER BY id + 0

-- name: find_living
-- Living tasks of either status, each read in the order of its index.
SELECT id FROM (
  SELECT id FROM (SELECT id FROM tasks {force_index tasks_status} WHERE deleted = 0 AND {above status id enabled}
    {up status id} LIMIT :look) AS enabled
  UNION ALL
  SELECT id FROM (SELECT id FROM tasks {force_index tasks_status} WHERE deleted = 0 AND {above status id disabled}
    {up status id} LIMIT :look) AS disabled) AS living
ORDER BY id LIMIT :limit OFFSET :skip

-- name: find_of_status
-- Living tasks of one status.
SELECT id FROM tasks {force_index tasks_status} WHERE deleted = 0 AND {above status id status}
{up status id} LIMIT :limit OFFSET :skip

-- name: find_among_tasks
-- Living tasks that match among those after an id.
-- filter status: AND status = :status
-- filter name: AND name LIKE :name ESCAPE '!'
-- filter tag: AND tags LIKE :tag ESCAPE '!'
-- filter last_status: AND last_status = :last_status
-- filter exec_type: AND exec_type = :exec_type
-- filter no_url: AND target_url <> :no_url
SELECT id FROM (SELECT id, CASE WHEN deleted = 0 {filters} THEN 1 ELSE 0 END AS matches FROM tasks {by_primary}
  WHERE id > :after ORDER BY id LIMIT :look) AS looked
WHERE matches = 1 ORDER BY id LIMIT :limit OFFSET :skip

-- name: count_among_tasks
-- How many match among the oldest.
-- filter status: AND status = :status
-- filter name: AND name LIKE :name ESCAPE '!'
-- filter tag: AND tags LIKE :tag ESCAPE '!'
-- filter last_status: AND last_status = :last_status
SELECT COALESCE(SUM(matches), 0) FROM (SELECT CASE WHEN deleted = 0 {filters} THEN 1 ELSE 0 END AS matches FROM tasks {by_primary}
  WHERE id > :after ORDER BY id LIMIT :look) AS looked

-- name: edge_among_tasks
-- The first task that was not looked at.
SELECT id FROM tasks WHERE id > :after ORDER BY id LIMIT 1 OFFSET :look
