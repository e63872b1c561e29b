-- Runs: one record per firing, held by one instance at a time under a token. A run's callback token is stored as it is.

-- name: insert_run
-- A new run.
INSERT INTO task_runs (uid, task_id, open_task, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind,
  exec_type, is_counted, host, ready_host, held_by, token, reason, callback_token, override_body, retry_of, trace_id,
  created_at, updated_at)
VALUES (:uid, :task_id, :open_task, :slot_at, :scheduled_time, {same start_time}, {same end_time}, {same status}, 1,
  {alike trigger_kind}, {alike exec_type}, {same is_counted}, {alike host}, {same ready_host}, {same held_by}, :token, {alike reason}, {alike callback_token},
  {same override_body}, {same retry_of}, :trace_id, {same created_at}, {same updated_at})

-- name: get_run
-- One run, whole.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs WHERE id = :id

-- name: lock_run
-- The same, locked.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs WHERE id = :id {for_update}

-- name: list_runs
-- Runs, newest first.
-- filter task_id: AND task_id = :task_id
-- filter slot_at: AND slot_at = :slot_at
-- filter open_task: AND open_task = :open_task
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs WHERE id > 0 {filters}
ORDER BY id DESC LIMIT :limit

-- name: count_open
-- Counted, unfinished runs of tasks: all, and those that wait for their turn. Tasks without any are left out.
SELECT open_task, COUNT(*), SUM(CASE WHEN status = 'SCHEDULED' AND ready_host IS NULL THEN 1 ELSE 0 END)
FROM task_runs {force_index task_runs_open} WHERE open_task {in task_ids} AND is_counted = 1 GROUP BY open_task

-- name: list_slots
-- Slots of a task that have a run.
SELECT slot_at FROM task_runs WHERE task_id = :task_id AND slot_at > :after AND slot_at <= :until ORDER BY slot_at LIMIT :limit

-- name: pace_run
-- Let a run that was just made wait until an instant.
UPDATE task_runs SET wake_at = :wake_at WHERE id = :id AND status = 'SCHEDULED' AND is_counted = 0

-- name: count_in_run
-- Count a run that waited outside of its task's line. Guard: it is as it was seen.
UPDATE task_runs SET is_counted = 1 WHERE id = :id AND status = 'SCHEDULED' AND token = :token AND is_counted = 0

-- name: put_off_runs
-- Put off all runs of a task that wait to be let in. By `wake_at + 0`: PostgreSQL would walk through all that wait.
UPDATE task_runs {force_index task_runs_open} SET wake_at = wake_at + :by_us
WHERE open_task = :task_id AND status = 'SCHEDULED' AND is_counted = 0 AND wake_at + 0 IS NOT NULL

-- name: count_unfinished
-- Unfinished runs of a task, counted or not, among so many.
SELECT COUNT(*) FROM (SELECT id FROM task_runs {force_index task_runs_open} WHERE open_task = :task_id LIMIT :limit) AS looked

-- name: list_held_back
-- Runs of a task that wait to be let in, in order.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs {force_index task_runs_open} WHERE open_task = :task_id AND status = 'SCHEDULED' AND is_counted = 0
  AND wake_at IS NOT NULL ORDER BY id LIMIT :limit

-- name: list_claimed
-- Which slots of some tasks have a run.
SELECT task_id, slot_at FROM task_runs WHERE task_id {in task_ids} AND slot_at >= :since AND slot_at <= :until

-- name: list_ready
-- Runs about to start at a host, oldest first; rows another instance is at are left to it.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs WHERE ready_host = :host ORDER BY id LIMIT :limit {skip_locked}

-- name: list_ready_hosts
-- Hosts that have runs about to start.
SELECT DISTINCT ready_host FROM task_runs WHERE ready_host IS NOT NULL LIMIT 10000

-- name: next_wake_at
-- When the next run must be looked at.
SELECT MIN(wake_at) FROM task_runs WHERE wake_at IS NOT NULL

-- name: list_held
-- Runs an instance has held since before an instant. By `id + 0`, or a database would walk through all runs there ever were for their
-- order; so with orphans.
SELECT id FROM task_runs {force_index task_runs_open}
WHERE open_task IS NOT NULL AND status = 'RUNNING' AND held_by = :me AND updated_at < :before
ORDER BY id + 0 LIMIT 10000

-- name: count_pending_callbacks
-- How many runs wait for a callback.
SELECT COUNT(*) FROM task_runs WHERE wake_at IS NOT NULL AND status = 'CALLBACK_PENDING'

-- name: insert_callback
-- Keep a callback as it came.
INSERT INTO async_callbacks (task_run_id, received_at, headers_json, body, status)
VALUES (:task_run_id, :received_at, :headers_json, :body, :status)

-- name: list_callbacks
-- A run's callbacks, in order.
SELECT id, received_at, body, status FROM async_callbacks WHERE task_run_id = :task_run_id ORDER BY id LIMIT 100

-- name: list_stalled
-- Tasks with runs that wait for their turn: the net under lost promotions.
SELECT DISTINCT open_task FROM task_runs {force_index task_runs_open}
WHERE open_task IS NOT NULL AND status = 'SCHEDULED' AND ready_host IS NULL AND is_counted = 1 LIMIT :limit

-- name: find_id
-- A run by its uid.
SELECT id FROM task_runs WHERE uid = :uid

-- name: find_by_token
-- A run by the hash of its callback token.
SELECT id, task_id, callback_token, end_time FROM task_runs WHERE callback_token = :callback_token

-- name: list_waiting
-- Runs of a task that wait for their turn, in order.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs {force_index task_runs_open} WHERE open_task = :task_id AND status = 'SCHEDULED' AND ready_host IS NULL AND is_counted = 1
ORDER BY id LIMIT :limit

-- name: list_wakes
-- Runs that must be looked at now: a retry's pause or a callback's deadline is over.
SELECT id, uid, task_id, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind, exec_type, is_counted,
  ready_host, wake_at, held_by, token, request_headers, request_body, response_code, response_body, response_truncated,
  response_encoding, error_message, reason, next_retry_time, callback_token, callback_deadline, callback_data, override_body,
  retry_of, trace_id, attempts, created_at, updated_at, host
FROM task_runs WHERE wake_at <= :now ORDER BY wake_at LIMIT :limit {skip_locked}

-- name: list_orphans
-- Runs held by an instance whose lease has run out, by the store's clock.
SELECT r.id, r.uid, r.task_id, r.slot_at, r.scheduled_time, r.start_time, r.end_time, r.status, r.attempt,
  r.trigger_kind, r.exec_type, r.is_counted, r.ready_host, r.wake_at, r.held_by, r.token, r.request_headers,
  r.request_body, r.response_code, r.response_body, r.response_truncated, r.response_encoding, r.error_message,
  r.reason, r.next_retry_time, r.callback_token, r.callback_deadline, r.callback_data, r.override_body, r.retry_of,
  r.trace_id, r.attempts, r.created_at, r.updated_at, r.host
FROM task_runs AS r {force_index task_runs_open} LEFT JOIN instances AS i ON i.id = r.held_by
WHERE r.open_task IS NOT NULL AND r.status = 'RUNNING' AND r.held_by <> :me
  AND (i.id IS NULL OR i.lease_until <= {now}) ORDER BY r.id + 0 LIMIT :limit

-- name: list_current
-- Which runs are RUNNING, and under which token.
SELECT id, token FROM task_runs WHERE id {in ids} AND status = 'RUNNING'

-- name: finish_run
-- Write an attempt's outcome. Guard: the state and token it was claimed with.
UPDATE task_runs SET status = :status, end_time = :end_time, open_task = :open_task, held_by = NULL, ready_host = NULL,
  wake_at = :wake_at, request_headers = :request_headers, request_body = :request_body, response_code = :response_code,
  response_body = :response_body, response_truncated = :response_truncated, response_encoding = :response_encoding,
  error_message = :error_message, reason = :reason, next_retry_time = :next_retry_time,
  callback_deadline = :callback_deadline, attempts = :attempts, updated_at = :at
WHERE id = :id AND status = :old_status AND token = :token

-- name: finish_plain_run
-- The same where nothing else is to be said: final, no error, the answer kept whole. Guard: the same.
UPDATE task_runs SET status = {same status}, end_time = :end_time, open_task = NULL, held_by = NULL, ready_host = NULL,
  wake_at = NULL, request_headers = :request_headers, request_body = :request_body, response_code = {alike response_code},
  response_body = :response_body, response_truncated = 0, response_encoding = NULL, error_message = NULL,
  reason = {same reason}, next_retry_time = NULL, callback_deadline = NULL, attempts = :attempts, updated_at = {same at}
WHERE id = :id AND status = :old_status AND token = :token

-- name: move_run
-- Move or end a run without its holder. Guard: the state and token it was seen in.
UPDATE task_runs SET status = :status, token = :new_token, attempt = :attempt, start_time = :start_time,
  end_time = :end_time, open_task = :open_task, ready_host = :ready_host, wake_at = :wake_at, held_by = :held_by,
  error_message = :error_message, reason = :reason, next_retry_time = :next_retry_time,
  callback_deadline = :callback_deadline, callback_data = :callback_data, attempts = :attempts, updated_at = :at
WHERE id = :id AND status = :old_status AND token = :token

-- name: measure_callbacks
-- How many callbacks of a run are kept, their size, and whether it was said that no more are.
SELECT COUNT(*), COALESCE(SUM(LENGTH(body) + LENGTH(headers_json)), 0), COALESCE(SUM(CASE WHEN status = 'CAPPED' THEN 1 ELSE 0 END), 0)
FROM async_callbacks WHERE task_run_id = :run_id

-- name: find_instants
-- When a run was made and when it was changed last, which is when it ended: events of these instants may lie with those of other runs.
SELECT created_at, updated_at FROM task_runs WHERE id = :id
