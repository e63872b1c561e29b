-- Governance jobs and gates. The order of a pull is an index; nothing here sorts or scans what waits.

-- name: insert_job
-- A new job. Only parameters among its values: MySQL's driver joins no other rows into one statement.
INSERT INTO governance_jobs (job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key,
  status, last_error, position, reason, created_at, updated_at, lease_token, deferrals, follow_key, is_follow_up, due_sec, class_no)
VALUES (:job_id, :object_type, :object_id, :action, :urgency, :run_at, :attempt, :max_attempts, :idempotency_key,
  :status, :last_error, :position, :reason, :created_at, :updated_at, :lease_token, :deferrals, :follow_key, :is_follow_up, :due_sec, :class_no)

-- name: insert_job_once
-- The same, unless its object type has a job with its idempotency key.
{insert_ignore} governance_jobs (job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key,
  status, last_error, position, reason, created_at, updated_at, lease_token, deferrals, follow_key, is_follow_up, due_sec, class_no)
VALUES (:job_id, :object_type, :object_id, :action, :urgency, :run_at, :attempt, :max_attempts, :idempotency_key,
  :status, :last_error, :position, :reason, :created_at, :updated_at, :lease_token, :deferrals, :follow_key, :is_follow_up, :due_sec, :class_no)
{on_conflict_ignore}

-- name: lease_job
-- Hand a job out. Guard: it is queued.
UPDATE governance_jobs SET status = :status, position = NULL, reason = :reason, worker_id = :worker_id, lease_token = :lease_token,
  lease_expires_at = :lease_expires_at, gate_key = NULL, follow_key = NULL, updated_at = :updated_at
WHERE seq = :seq AND status = 'queued'

-- name: end_job
-- End a job that is held. Guard: it is running, under the token of the decision.
UPDATE governance_jobs SET status = :status, position = NULL, reason = :reason, last_error = :last_error, lease_token = 0,
  lease_expires_at = NULL, finished_at = :finished_at, updated_at = :updated_at, audit_event_id = :audit_event_id,
  next_action_at = :next_action_at, follow_up_id = :follow_up_id, ack_digest = :ack_digest
WHERE seq = :seq AND status = 'running' AND lease_token = :old_token

-- name: change_job
-- Any other change. Guard: the status and the token of the decision.
UPDATE governance_jobs SET action = :action, run_at = :run_at, attempt = :attempt, idempotency_key = :idempotency_key,
  status = :status, last_error = :last_error, position = :position, reason = :reason, updated_at = :updated_at,
  finished_at = :finished_at, worker_id = :worker_id, lease_token = :lease_token, lease_expires_at = :lease_expires_at,
  deferrals = :deferrals, gate_key = :gate_key, follow_key = :follow_key, due_sec = :due_sec, class_no = :class_no
WHERE seq = :seq AND status = :old_status AND lease_token = :old_token

-- name: delete_job
-- Take a queued follow-up out. Guard: nobody was given it.
DELETE FROM governance_jobs WHERE seq = :seq AND status = 'queued'

-- name: take_due
-- Queued jobs that are due, by second and priority, held; those that others hold are passed over.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs {force_index governance_jobs_due}
WHERE position = 0 AND due_sec <= :sec AND run_at <= :now_at
ORDER BY due_sec, urgency, seq LIMIT :limit {skip_locked}

-- name: take_class
-- The same of one class.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs {force_index governance_jobs_class}
WHERE position = 0 AND class_no = :class_no AND due_sec <= :sec AND run_at <= :now_at
ORDER BY due_sec, seq LIMIT :limit {skip_locked}

-- name: peek_class
-- The first due places of one class, not held. Of a whole second that is past all are due, without a look at the row.
SELECT due_sec, seq FROM governance_jobs {force_index governance_jobs_class}
WHERE position = 0 AND class_no = :class_no AND due_sec <= :sec AND (due_sec < :sec OR run_at <= :now_at)
ORDER BY due_sec, seq LIMIT :limit

-- name: peek_due
-- The first due places of all classes, not held.
SELECT class_no, due_sec, urgency, seq FROM governance_jobs {force_index governance_jobs_due}
WHERE position = 0 AND due_sec <= :sec AND run_at <= :now_at
ORDER BY due_sec, urgency, seq LIMIT :limit

-- name: next_due
-- When the first queued job is due.
SELECT run_at FROM governance_jobs {force_index governance_jobs_due} WHERE position = 0 ORDER BY due_sec, urgency, seq LIMIT 1

-- name: next_lease
-- When the first lease ends.
SELECT lease_expires_at FROM governance_jobs {force_index governance_jobs_lease} WHERE lease_expires_at IS NOT NULL
ORDER BY lease_expires_at LIMIT 1

-- name: lock_jobs
-- Jobs by their ids, held, and whether their lease is over by the store's clock.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up, CASE WHEN lease_expires_at <= {now} THEN 1 ELSE 0 END
FROM governance_jobs WHERE job_id {in ids} {for_update}

-- name: lock_expired
-- Held jobs whose lease is over by the store's clock, the oldest first. Only held jobs have a lease. The instant that is given
-- bounds the range: PostgreSQL uses no index for a clock that is read in the statement.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs {force_index governance_jobs_lease}
WHERE lease_expires_at <= :now_at AND lease_expires_at <= {now}
ORDER BY lease_expires_at LIMIT :limit {skip_locked}

-- name: lock_deferred
-- Jobs that wait for one setting of a gate, the oldest first.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs {force_index governance_jobs_deferred}
WHERE position = 1 AND gate_key = :gate_key
ORDER BY seq LIMIT :limit {skip_locked}

-- name: first_deferred
-- A job that waits for one setting of a gate.
SELECT seq FROM governance_jobs {force_index governance_jobs_deferred} WHERE position = 1 AND gate_key = :gate_key LIMIT 1

-- name: lock_follow_ups
-- The queued follow-ups of objects, held.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs WHERE follow_key {in keys} {for_update}

-- name: find_job
-- One job.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs WHERE job_id = :job_id

-- name: find_job_by_key
-- The job with an idempotency key.
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs WHERE idempotency_key = :idempotency_key AND object_type = :object_type

-- name: list_jobs
-- Jobs, newest first.
-- filter status: AND status = :status
-- filter object_type: AND object_type = :object_type
-- filter object_id: AND object_id = :object_id
-- filter action: AND action = :action
-- filter worker_id: AND worker_id = :worker_id
-- filter run_after: AND run_at >= :run_after
-- filter run_before: AND run_at < :run_before
-- filter before: AND seq < :before
SELECT seq, job_id, object_type, object_id, action, urgency, run_at, attempt, max_attempts, idempotency_key, status, last_error,
  position, reason, created_at, updated_at, finished_at, worker_id, lease_token, lease_expires_at, deferrals, gate_key, follow_key,
  audit_event_id, next_action_at, follow_up_id, ack_digest, is_follow_up
FROM governance_jobs WHERE seq > 0 {filters}
ORDER BY seq DESC LIMIT :limit

-- name: list_finished
-- Jobs that ended before, the oldest first, and which are dead letters.
SELECT seq, finished_at,
  CASE WHEN EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'governance' AND entity_id = governance_jobs.job_id) THEN 1 ELSE 0 END
FROM governance_jobs {force_index governance_jobs_finished}
WHERE finished_at < :before AND finished_at >= :after_at AND (finished_at > :after_at OR seq > :after_seq)
ORDER BY finished_at, seq LIMIT :limit

-- name: delete_finished
-- Remove one. Guard: it has ended, and is no dead letter.
DELETE FROM governance_jobs WHERE seq = :seq AND finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'governance' AND entity_id = governance_jobs.job_id)

-- name: count_due
-- Queued jobs that are due, up to a limit.
SELECT COUNT(*), MIN(run_at) FROM (SELECT run_at FROM governance_jobs {force_index governance_jobs_due}
  WHERE position = 0 AND due_sec <= :sec AND run_at <= :now_at ORDER BY due_sec, urgency, seq LIMIT :limit) AS due

-- name: count_status
-- Jobs in a status, up to a limit.
SELECT COUNT(*) FROM (SELECT 1 FROM governance_jobs {force_index governance_jobs_status}
  WHERE status = :status LIMIT :limit) AS found

-- name: count_deferred
-- Jobs that wait for a gate, up to a limit.
SELECT COUNT(*) FROM (SELECT 1 FROM governance_jobs {force_index governance_jobs_deferred}
  WHERE position = 1 LIMIT :limit) AS found

-- name: sum_counts
-- What was counted since an instant, over all writers.
SELECT metric, SUM(n) FROM rollups
WHERE metric {in metrics} AND minutes = 1 AND bucket_at >= :since GROUP BY metric

-- name: list_gates
-- Every setting of every gate.
SELECT gate, scope, state, reason, updated_at, updated_by FROM governance_gates ORDER BY gate, scope

-- name: lock_gates
-- The settings for everything, held: whoever sets a gate waits.
SELECT gate FROM governance_gates WHERE scope = '' ORDER BY gate {for_update}

-- name: set_gate
-- Write one setting.
INSERT INTO governance_gates (gate, scope, state, reason, updated_at, updated_by)
VALUES (:gate, :scope, :state, :reason, :updated_at, :updated_by)
{upsert gate, scope} state = {excluded state}, reason = {excluded reason}, updated_at = {excluded updated_at},
  updated_by = {excluded updated_by}
