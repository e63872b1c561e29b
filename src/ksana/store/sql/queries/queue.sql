-- The queue. Jobs in lane 1 are ready, in lane 0 they wait for their time; see migrations/0003_queue.sql.
-- Locks are taken in one order: capacity, leases, jobs, gauges.

-- name: insert_job
-- A new job.
INSERT INTO scheduler_job_runs (job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, run_at, fairness_key, client_request_id, cancel_requested, lane, urgency, line_id,
  turn, due_at)
VALUES (:job_id, :addon_id, :job_type, :priority, :cost_units, :constraints_json, :payload_json, 'QUEUED', 0,
  :max_attempts, :now_at, :now_at, :run_at, :fairness_key, :client_request_id, 0, :lane, :urgency, :line_id,
  :turn, :due_at)

-- name: insert_job_once
-- A new job. Guard: its addon has not sent the same client_request_id before.
{insert_ignore} scheduler_job_runs (job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, run_at, fairness_key, client_request_id, cancel_requested, lane, urgency, line_id,
  turn, due_at)
VALUES (:job_id, :addon_id, :job_type, :priority, :cost_units, :constraints_json, :payload_json, 'QUEUED', 0,
  :max_attempts, :now_at, :now_at, :run_at, :fairness_key, :client_request_id, 0, :lane, :urgency, :line_id,
  :turn, :due_at)
{on_conflict_ignore}

-- name: find_job
-- One job.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs WHERE job_id = :job_id

-- name: lock_job
-- One job, held until the end of the transaction, and whether its claim still lasts by the store's clock.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at, CASE WHEN claim_expires_at > {now} THEN 1 ELSE 0 END
FROM scheduler_job_runs WHERE job_id = :job_id {for_update}

-- name: find_job_by_request
-- The job an addon submitted under its own id.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs WHERE addon_id = :addon_id AND client_request_id = :client_request_id

-- name: lock_jobs_among
-- Up to 64 jobs by id, held; unused places repeat an id.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs WHERE job_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14, :id15,
  :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29, :id30, :id31,
  :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44, :id45, :id46, :id47,
  :id48, :id49, :id50, :id51, :id52, :id53, :id54, :id55, :id56, :id57, :id58, :id59, :id60, :id61, :id62, :id63)
ORDER BY seq {for_update}

-- name: list_jobs
-- Newest first, by the order of submission.
-- filter state: AND state = :state
-- filter addon_id: AND addon_id = :addon_id
-- filter job_type: AND job_type = :job_type
-- filter created_after: AND created_at > :created_after
-- filter created_before: AND created_at < :created_before
-- filter before: AND seq < :before
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs WHERE seq > 0 {filters} ORDER BY seq DESC LIMIT :limit

-- name: enter_line
-- A line seen for the first time.
{insert_ignore} queue_lines (id, addon_id, job_type, cost_units, needs_json)
VALUES (:id, :addon_id, :job_type, :cost_units, :needs_json) {on_conflict_ignore}

-- name: line_mark
-- Tells whether lines were added since they were last read; ids are hashes, so equal sums mean equal sets.
SELECT COUNT(*), COALESCE(SUM(id % 1000003), 0) FROM queue_lines

-- name: list_lines
-- Every line there ever was.
SELECT id, addon_id, job_type, cost_units, needs_json FROM queue_lines ORDER BY id

-- name: head_turn
-- The least turn that waits at this urgency.
SELECT MIN(turn) FROM scheduler_job_runs WHERE lane = 1 AND urgency = :urgency

-- name: tail_turn
-- The greatest turn that waits at this urgency.
SELECT MAX(turn) FROM scheduler_job_runs WHERE lane = 1 AND urgency = :urgency

-- name: key_turn
-- The greatest turn that waits at this urgency under a fairness key.
SELECT MAX(turn) FROM scheduler_job_runs WHERE lane = 1 AND fairness_key = :fairness_key AND urgency = :urgency

-- name: list_due
-- Scheduled jobs whose time has come, by the store's clock.
SELECT seq, urgency, fairness_key, line_id FROM scheduler_job_runs {force_index job_runs_scheduled}
WHERE lane = 0 AND due_at <= {now} ORDER BY due_at, seq LIMIT :limit {skip_locked}

-- name: promote_job
-- A scheduled job gets its turn. Guard: still scheduled.
UPDATE scheduler_job_runs SET lane = 1, turn = :turn WHERE seq = :seq AND lane = 0

-- name: peek_ready
-- The head of the line, unlocked: which lines a claim should take from.
SELECT line_id, urgency, turn, seq FROM scheduler_job_runs {force_index job_runs_ready}
WHERE lane = 1 ORDER BY urgency, turn, seq LIMIT :limit

-- name: peek_line
-- The head of one line, unlocked.
SELECT line_id, urgency, turn, seq FROM scheduler_job_runs {force_index job_runs_line}
WHERE lane = 1 AND line_id = :line_id ORDER BY urgency, turn, seq LIMIT :limit

-- name: take_ready
-- The next ready jobs, held, passing over those that another claim holds.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs {force_index job_runs_ready}
WHERE lane = 1 ORDER BY urgency, turn, seq LIMIT :limit {skip_locked}

-- name: take_line
-- The next ready jobs of one line, held, passing over those that another claim holds.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs {force_index job_runs_line}
WHERE lane = 1 AND line_id = :line_id ORDER BY urgency, turn, seq LIMIT :limit {skip_locked}

-- name: claim_job
-- Guard: still ready.
UPDATE scheduler_job_runs SET lane = 2, state = 'CLAIMED', claimed_by = :worker_id, claim_expires_at = :until,
  updated_at = :now_at, progress = NULL, note = NULL
WHERE seq = :seq AND lane = 1

-- name: run_ready_job
-- Claim and lease in one. Guard: still ready.
UPDATE scheduler_job_runs SET lane = 4, state = 'RUNNING', claimed_by = :worker_id, lease_id = :lease_id,
  attempts = attempts + 1, started_at = :now_at, updated_at = :now_at, next_retry_at = NULL, progress = NULL, note = NULL
WHERE seq = :seq AND lane = 1

-- name: grant_job
-- A claimed job runs. Guard: claimed, and the claim lasts by the store's clock.
UPDATE scheduler_job_runs SET lane = 4, state = 'RUNNING', lease_id = :lease_id, attempts = attempts + 1,
  claim_expires_at = NULL, pending_at = NULL, next_retry_at = NULL, started_at = :now_at, updated_at = :now_at
WHERE job_id = :job_id AND lane IN (2, 3) AND claim_expires_at > {now}

-- name: deny_job
-- A refused request waits with its claim kept. Guard: claimed, and the claim lasts by the store's clock.
UPDATE scheduler_job_runs SET lane = 3, state = 'LEASE_PENDING', next_retry_at = :next_retry_at, claim_expires_at = :until,
  pending_at = COALESCE(pending_at, :now_at), updated_at = :now_at
WHERE job_id = :job_id AND lane IN (2, 3) AND claim_expires_at > {now}

-- name: report_held_job
-- A worker's note on its claimed job; extends the claim. Guard: that state, and the claim lasts by the store's clock.
UPDATE scheduler_job_runs SET lane = :lane, state = :to_state, progress = :progress, note = :note, claim_expires_at = :until,
  updated_at = :now_at
WHERE job_id = :job_id AND state = :state AND lane IN (2, 3) AND claim_expires_at > {now}

-- name: report_running_job
-- A worker's note on its running job. Guard: running under this very lease.
UPDATE scheduler_job_runs SET progress = :progress, note = :note, updated_at = :now_at
WHERE job_id = :job_id AND lane = 4 AND lease_id = :lease_id

-- name: cancel_job
-- Guard: not running, not ended.
UPDATE scheduler_job_runs SET lane = NULL, state = 'CANCELED', final_status = 'CANCELED', cancel_requested = 1,
  cancel_reason = :reason, claim_expires_at = NULL, pending_at = NULL, next_retry_at = NULL, finished_at = :now_at,
  updated_at = :now_at
WHERE job_id = :job_id AND lane < 4

-- name: request_cancel
-- Guard: running.
UPDATE scheduler_job_runs SET cancel_requested = 1, cancel_reason = :reason, updated_at = :now_at
WHERE job_id = :job_id AND lane = 4

-- name: end_job
-- Guard: running under this very lease.
UPDATE scheduler_job_runs SET lane = NULL, state = :state, final_status = :final_status, error_text = :error_text,
  result_json = :result_json, metrics_json = :metrics_json, finished_at = :now_at, updated_at = :now_at
WHERE seq = :seq AND lane = 4 AND lease_id = :lease_id

-- name: requeue_job
-- Another attempt. Guard: running under this very lease.
UPDATE scheduler_job_runs SET lane = :lane, state = 'QUEUED', claimed_by = NULL, lease_id = NULL, turn = :turn,
  due_at = :due_at, next_retry_at = :next_retry_at, error_text = :error_text, result_json = :result_json,
  metrics_json = :metrics_json, progress = NULL, note = NULL, updated_at = :now_at
WHERE seq = :seq AND lane = 4 AND lease_id = :lease_id

-- name: list_expired_claims
-- Claims that ran out by the store's clock, held.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs {force_index job_runs_claim}
WHERE claim_expires_at IS NOT NULL AND claim_expires_at <= {now} ORDER BY claim_expires_at LIMIT :limit {skip_locked}

-- name: requeue_claimed_job
-- Back to its place. Guard: the claim ran out by the store's clock.
UPDATE scheduler_job_runs SET lane = 1, state = 'QUEUED', claimed_by = NULL, claim_expires_at = NULL, pending_at = NULL,
  next_retry_at = NULL, turn = :turn, progress = NULL, note = NULL, updated_at = :now_at
WHERE seq = :seq AND lane IN (2, 3) AND claim_expires_at <= {now}

-- name: next_due
-- When something of the queue is due next: a scheduled job, a claim's end, a lease's end.
SELECT
  (SELECT MIN(due_at) FROM scheduler_job_runs WHERE lane = 0),
  (SELECT MIN(claim_expires_at) FROM scheduler_job_runs WHERE claim_expires_at IS NOT NULL),
  (SELECT MIN(expires_at) FROM scheduler_lease_runs WHERE state = 'ACTIVE')

-- name: best_pending_urgency
-- The most urgent other job that waits for capacity.
SELECT MIN(urgency) FROM scheduler_job_runs WHERE lane = 3 AND job_id <> :job_id

-- name: count_pending_ahead
-- How many wait for capacity before this one.
SELECT COUNT(*) FROM scheduler_job_runs
WHERE lane = 3 AND job_id <> :job_id AND (urgency < :urgency OR (urgency = :urgency AND pending_at < :pending_at))

-- name: count_ready_ahead
-- How many ready jobs are before this one, counted up to a limit.
SELECT COUNT(*) FROM (
  SELECT seq FROM scheduler_job_runs
  WHERE lane = 1 AND (urgency < :urgency OR (urgency = :urgency AND (turn < :turn OR (turn = :turn AND seq < :seq))))
  LIMIT :limit) AS ahead

-- name: list_finished
-- Jobs that ended long ago.
SELECT seq, job_id FROM scheduler_job_runs {force_index job_runs_finished}
WHERE finished_at IS NOT NULL AND finished_at < :before ORDER BY finished_at LIMIT :limit

-- name: delete_job
-- Guard: ended.
DELETE FROM scheduler_job_runs WHERE seq = :seq AND lane IS NULL

-- name: delete_leases
-- The leases of a job that is gone. Guard: none of them is active.
DELETE FROM scheduler_lease_runs WHERE job_id = :job_id AND state <> 'ACTIVE'

-- name: insert_lease
-- A new lease.
INSERT INTO scheduler_lease_runs (lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at,
  last_heartbeat_at, expires_at)
VALUES (:lease_id, :job_id, :addon_id, :worker_id, :cost_units, :ttl_sec, 'ACTIVE', :now_at, :now_at, :expires_at)

-- name: find_lease
-- One lease.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest
FROM scheduler_lease_runs WHERE lease_id = :lease_id

-- name: lock_lease
-- One lease, held, and whether it lasts by the store's clock.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, CASE WHEN state = 'ACTIVE' AND expires_at > {now} THEN 1 ELSE 0 END
FROM scheduler_lease_runs WHERE lease_id = :lease_id {for_update}

-- name: lock_leases_among
-- Up to 64 leases by id, held, and whether each lasts by the store's clock; unused places repeat an id.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, CASE WHEN state = 'ACTIVE' AND expires_at > {now} THEN 1 ELSE 0 END
FROM scheduler_lease_runs WHERE lease_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14, :id15,
  :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29, :id30, :id31,
  :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44, :id45, :id46, :id47,
  :id48, :id49, :id50, :id51, :id52, :id53, :id54, :id55, :id56, :id57, :id58, :id59, :id60, :id61, :id62, :id63)
ORDER BY seq {for_update}

-- name: list_leases_of_job
-- Every lease a job had, oldest first.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest
FROM scheduler_lease_runs WHERE job_id = :job_id ORDER BY seq

-- name: list_active_leases
-- Who holds capacity, the first to run out first.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest
FROM scheduler_lease_runs {force_index lease_runs_active}
WHERE state = 'ACTIVE' ORDER BY expires_at LIMIT :limit

-- name: list_expired_leases
-- Leases that ran out by the store's clock, held.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest
FROM scheduler_lease_runs {force_index lease_runs_active}
WHERE state = 'ACTIVE' AND expires_at <= {now} ORDER BY expires_at LIMIT :limit {skip_locked}

-- name: beat_lease
-- A sign of life. Guard: active, and it lasts by the store's clock.
UPDATE scheduler_lease_runs SET last_heartbeat_at = :now_at, expires_at = :expires_at, ttl_sec = :ttl_sec
WHERE lease_id = :lease_id AND state = 'ACTIVE' AND expires_at > {now}

-- name: release_lease
-- Guard: active. Whether it lasted was judged when it was locked.
UPDATE scheduler_lease_runs SET state = 'RELEASED', released_at = :now_at, release_status = :status, release_digest = :digest
WHERE lease_id = :lease_id AND state = 'ACTIVE'

-- name: expire_lease
-- Guard: active, and it ran out by the store's clock.
UPDATE scheduler_lease_runs SET state = 'EXPIRED', released_at = :now_at
WHERE lease_id = :lease_id AND state = 'ACTIVE' AND expires_at <= {now}

-- name: sum_active
-- What the active leases hold in truth.
SELECT COUNT(*), COALESCE(SUM(cost_units), 0) FROM scheduler_lease_runs WHERE state = 'ACTIVE'

-- name: sum_active_of_addon
-- What the active leases of one addon hold.
SELECT COALESCE(SUM(cost_units), 0) FROM scheduler_lease_runs WHERE state = 'ACTIVE' AND addon_id = :addon_id

-- name: lock_capacity
-- The capacity, held: whoever admits or frees units takes this first.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity
WHERE id = 1 {for_update}

-- name: get_capacity
-- The capacity as last committed.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity WHERE id = 1

-- name: set_capacity
-- Under the lock.
UPDATE queue_capacity SET used = :used, active = :active, reserved_units = :reserved_units, reserved_for = :reserved_for,
  reserved_urgency = :reserved_urgency, reserved_until = :reserved_until
WHERE id = 1

-- name: drop_reserve
-- A job that no longer waits keeps no units. Guard: they are kept for it.
UPDATE queue_capacity SET reserved_units = 0, reserved_for = NULL WHERE id = 1 AND reserved_for = :job_id

-- name: add_to_gauges
-- Gauges are spread over a few rows, so that writers do not wait for each other.
INSERT INTO queue_gauges (shard, queued, running, arrivals) VALUES (:shard, :queued, :running, :arrivals)
{upsert shard} queued = queue_gauges.queued + {excluded queued}, running = queue_gauges.running + {excluded running},
  arrivals = queue_gauges.arrivals + {excluded arrivals}

-- name: sum_gauges
-- The gauges.
SELECT COALESCE(SUM(queued), 0), COALESCE(SUM(running), 0), COALESCE(SUM(arrivals), 0) FROM queue_gauges

-- name: count_waiting
-- What the gauges should say, counted.
SELECT (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 0), (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 1),
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 4)
