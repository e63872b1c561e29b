-- The queue. Jobs in lane 1 are ready, in lane 0 they wait for their time; see migrations/0003_queue.sql.
-- Locks are taken in one order: capacity, leases, jobs; units are given back at the end, before anything is counted. Statements with many places write `lane + 0` so that MySQL finds the
-- rows by their ids and locks no others. `(SELECT {now})` asks the store's clock once for a statement, not once for a row.

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
-- Up to 50 jobs by id, held in the order of ids; unused places repeat an id.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, max_attempts,
  created_at, updated_at, run_at, claimed_by, claim_expires_at, lease_id, next_retry_at, fairness_key, client_request_id,
  cancel_requested, cancel_reason, progress, note, started_at, finished_at, final_status, error_text, result_json,
  metrics_json, lane, urgency, line_id, turn, due_at, pending_at
FROM scheduler_job_runs {force_index job_runs_id} WHERE job_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49) {for_update}

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
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, attempts, max_attempts,
  created_at, run_at, next_retry_at, started_at, fairness_key, client_request_id, error_text, metrics_json, urgency, line_id,
  turn, due_at
FROM scheduler_job_runs {force_index job_runs_ready}
WHERE lane = 1 ORDER BY urgency, turn, seq LIMIT :limit {skip_locked}

-- name: take_line
-- The next ready jobs of one line, held, passing over those that another claim holds.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, attempts, max_attempts,
  created_at, run_at, next_retry_at, started_at, fairness_key, client_request_id, error_text, metrics_json, urgency, line_id,
  turn, due_at
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
-- Back to its place. Guard: claimed. That the claim ran out was judged when it was locked.
UPDATE scheduler_job_runs SET lane = 1, state = 'QUEUED', claimed_by = NULL, claim_expires_at = NULL, pending_at = NULL,
  next_retry_at = NULL, turn = :turn, progress = NULL, note = NULL, updated_at = :now_at
WHERE seq = :seq AND lane IN (2, 3)

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
WHERE lane = 3 AND job_id <> :job_id AND (urgency < :urgency OR (urgency = :urgency
  AND (pending_at < :pending_at OR (pending_at = :pending_at AND seq < :seq))))

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
DELETE FROM scheduler_lease_runs WHERE job_seq = :job_seq AND state <> 'ACTIVE'

-- name: insert_lease
-- A new lease.
INSERT INTO scheduler_lease_runs (lease_id, job_id, job_seq, addon_id, worker_id, cost_units, ttl_sec, state, granted_at,
  last_heartbeat_at, expires_at)
VALUES (:lease_id, :job_id, :job_seq, :addon_id, :worker_id, :cost_units, :ttl_sec, 'ACTIVE', :now_at, :now_at, :expires_at)

-- name: insert_leases_of
-- A new lease for each of these jobs, which have just become running under it.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_lease_runs (lease_id, job_id, job_seq, addon_id, worker_id, cost_units, ttl_sec, state, granted_at,
  last_heartbeat_at, expires_at)
SELECT lease_id, job_id, seq, addon_id, claimed_by, cost_units, :ttl_sec, 'ACTIVE', :now_at, :now_at, :expires_at
FROM scheduler_job_runs WHERE 1 = 1 {filters}

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
-- Up to 50 leases by id, held in the order of ids, and whether each lasts by the store's clock; unused places repeat an id.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, CASE WHEN state = 'ACTIVE' AND expires_at > (SELECT {now}) THEN 1 ELSE 0 END
FROM scheduler_lease_runs {force_primary} WHERE lease_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49) {for_update}

-- name: lock_holds_among
-- Up to 50 leases by id with what ending their attempts takes of the jobs, both held, and whether each lasts by the store's
-- clock; unused places repeat an id.
SELECT l.lease_id, l.job_id, l.worker_id, l.cost_units, l.ttl_sec, l.state, l.release_digest,
  CASE WHEN l.state = 'ACTIVE' AND l.expires_at > (SELECT {now}) THEN 1 ELSE 0 END,
  j.seq, j.state, j.attempts, j.max_attempts, j.cancel_requested, j.started_at, j.urgency
FROM scheduler_lease_runs AS l {force_primary}
JOIN scheduler_job_runs AS j {force_primary} ON j.seq = l.job_seq
WHERE l.lease_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49) {for_update}

-- name: list_holds
-- The same for any number of leases, where the one writer needs no locks.
SELECT l.lease_id, l.job_id, l.worker_id, l.cost_units, l.ttl_sec, l.state, l.release_digest,
  CASE WHEN l.state = 'ACTIVE' AND l.expires_at > (SELECT {now}) THEN 1 ELSE 0 END,
  j.seq, j.state, j.attempts, j.max_attempts, j.cancel_requested, j.started_at, j.urgency
FROM scheduler_lease_runs AS l
JOIN scheduler_job_runs AS j ON j.seq = l.job_seq
WHERE l.lease_id {in ids}

-- name: list_leases_of_job
-- Every lease a job had, oldest first.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest
FROM scheduler_lease_runs WHERE job_seq = :job_seq ORDER BY granted_at, lease_id

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
-- A sign of life. Guard: active. Whether it lasts was judged when it was locked.
UPDATE scheduler_lease_runs SET last_heartbeat_at = :now_at, expires_at = :expires_at, ttl_sec = :ttl_sec
WHERE lease_id = :lease_id AND state = 'ACTIVE'

-- name: release_lease
-- Guard: active. Whether it lasted was judged when it was locked.
UPDATE scheduler_lease_runs SET state = 'RELEASED', released_at = :now_at, release_status = :status, release_digest = :digest
WHERE lease_id = :lease_id AND state = 'ACTIVE'

-- name: expire_lease
-- Guard: active. That it ran out was judged when it was locked.
UPDATE scheduler_lease_runs SET state = 'EXPIRED', released_at = :now_at
WHERE lease_id = :lease_id AND state = 'ACTIVE'

-- name: sum_active
-- What the active leases hold in truth.
SELECT COUNT(*), COALESCE(SUM(cost_units), 0) FROM scheduler_lease_runs WHERE state = 'ACTIVE'

-- name: sum_active_of_addon
-- What the active leases of one addon hold.
SELECT COALESCE(SUM(cost_units), 0) FROM scheduler_lease_runs WHERE state = 'ACTIVE' AND addon_id = :addon_id

-- name: tell_claimed
-- An event for each of these jobs, the same of all.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)
SELECT :now_at, 'JOB', job_id, 'JOB_CLAIMED', :data
FROM scheduler_job_runs WHERE 1 = 1 {filters}

-- name: tell_granted
-- An event for the lease of each of these jobs; * stands for the job and # for its cost.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)
SELECT :now_at, 'LEASE', lease_id, 'LEASE_GRANTED', REPLACE(REPLACE(:data, '*', job_id), '#', {text cost_units})
FROM scheduler_job_runs WHERE 1 = 1 {filters}

-- name: tell_running
-- An event for each of these jobs; * stands for the lease and # for the attempt.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)
SELECT :now_at, 'JOB', job_id, 'JOB_RUNNING', REPLACE(REPLACE(:data, '*', lease_id), '#', {text attempts})
FROM scheduler_job_runs WHERE 1 = 1 {filters}

-- name: tell_released
-- An event for the lease of each of these jobs; * stands for the job.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)
SELECT :now_at, 'LEASE', lease_id, 'LEASE_RELEASED', REPLACE(:data, '*', job_id)
FROM scheduler_job_runs WHERE 1 = 1 {filters}

-- name: tell_done
-- An event for each of these jobs; * stands for the lease and # for the attempt.
-- filter range: AND seq BETWEEN :first AND :last
-- filter list: AND seq {in seqs}
INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)
SELECT :now_at, 'JOB', job_id, 'JOB_DONE', REPLACE(REPLACE(:data, '*', lease_id), '#', {text attempts})
FROM scheduler_job_runs WHERE 1 = 1 {filters}

-- name: lock_capacity
-- The capacity, held: whoever admits or frees units takes this first.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity
WHERE id = 1 {for_update}

-- name: try_lock_capacity
-- The same, but nothing if another holds it.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity
WHERE id = 1 {skip_locked}

-- name: get_capacity
-- The capacity as last committed.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity WHERE id = 1

-- name: set_capacity
-- Under the lock.
UPDATE queue_capacity SET used = :used, active = :active, reserved_units = :reserved_units, reserved_for = :reserved_for,
  reserved_urgency = :reserved_urgency, reserved_until = :reserved_until
WHERE id = 1

-- name: free_capacity
-- Units given back: relative, so that nobody need hold the row from the start.
UPDATE queue_capacity SET used = used - :units, active = active - :leases WHERE id = 1

-- name: drop_reserve
-- A job that no longer waits keeps no units. Guard: they are kept for it.
UPDATE queue_capacity SET reserved_units = 0, reserved_for = NULL WHERE id = 1 AND reserved_for = :job_id

-- name: add_to_gauges
-- Every connection has a row of its own, so that writers never wait for each other.
INSERT INTO queue_gauges (shard, queued, running, arrivals) VALUES (:shard, :queued, :running, :arrivals)
{upsert shard} queued = queue_gauges.queued + {excluded queued}, running = queue_gauges.running + {excluded running},
  arrivals = queue_gauges.arrivals + {excluded arrivals}

-- name: list_gauges
-- The rows of connections that are idle or gone, held.
SELECT shard, queued, running, arrivals FROM queue_gauges WHERE shard <> :shard ORDER BY shard LIMIT :limit {skip_locked}

-- name: delete_gauges
-- Under the lock, after their sums were added to another row.
DELETE FROM queue_gauges WHERE shard = :shard

-- name: sum_gauges
-- The gauges.
SELECT COALESCE(SUM(queued), 0), COALESCE(SUM(running), 0), COALESCE(SUM(arrivals), 0) FROM queue_gauges

-- name: count_waiting
-- What the gauges should say, counted.
SELECT (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 0), (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 1),
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE lane = 4)

-- name: claim_jobs_among
-- claim_job for up to 50 jobs; unused places repeat one. Guard: still ready.
UPDATE scheduler_job_runs SET lane = 2, state = 'CLAIMED', claimed_by = :worker_id, claim_expires_at = :until,
  updated_at = :now_at, progress = NULL, note = NULL
WHERE lane + 0 = 1 AND seq IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49)

-- name: run_ready_jobs_among
-- run_ready_job for up to 50 jobs; unused places repeat one. Guard: still ready.
UPDATE scheduler_job_runs SET lane = 4, state = 'RUNNING', claimed_by = :worker_id,
  attempts = attempts + 1, started_at = :now_at, updated_at = :now_at, next_retry_at = NULL, progress = NULL, note = NULL,
  lease_id = CASE seq
    WHEN :id0 THEN :lease0 WHEN :id1 THEN :lease1 WHEN :id2 THEN :lease2 WHEN :id3 THEN :lease3 WHEN :id4 THEN :lease4
    WHEN :id5 THEN :lease5 WHEN :id6 THEN :lease6 WHEN :id7 THEN :lease7 WHEN :id8 THEN :lease8 WHEN :id9 THEN :lease9
    WHEN :id10 THEN :lease10 WHEN :id11 THEN :lease11 WHEN :id12 THEN :lease12 WHEN :id13 THEN :lease13 WHEN :id14 THEN :lease14
    WHEN :id15 THEN :lease15 WHEN :id16 THEN :lease16 WHEN :id17 THEN :lease17 WHEN :id18 THEN :lease18 WHEN :id19 THEN :lease19
    WHEN :id20 THEN :lease20 WHEN :id21 THEN :lease21 WHEN :id22 THEN :lease22 WHEN :id23 THEN :lease23 WHEN :id24 THEN :lease24
    WHEN :id25 THEN :lease25 WHEN :id26 THEN :lease26 WHEN :id27 THEN :lease27 WHEN :id28 THEN :lease28 WHEN :id29 THEN :lease29
    WHEN :id30 THEN :lease30 WHEN :id31 THEN :lease31 WHEN :id32 THEN :lease32 WHEN :id33 THEN :lease33 WHEN :id34 THEN :lease34
    WHEN :id35 THEN :lease35 WHEN :id36 THEN :lease36 WHEN :id37 THEN :lease37 WHEN :id38 THEN :lease38 WHEN :id39 THEN :lease39
    WHEN :id40 THEN :lease40 WHEN :id41 THEN :lease41 WHEN :id42 THEN :lease42 WHEN :id43 THEN :lease43 WHEN :id44 THEN :lease44
    WHEN :id45 THEN :lease45 WHEN :id46 THEN :lease46 WHEN :id47 THEN :lease47 WHEN :id48 THEN :lease48 WHEN :id49 THEN :lease49 END
WHERE lane + 0 = 1 AND seq IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49)

-- name: end_jobs_among
-- end_job for up to 50 jobs that end alike; unused places repeat one. Guard: running under these very leases.
UPDATE scheduler_job_runs SET lane = NULL, state = :state, final_status = :final_status, error_text = :error_text,
  finished_at = :now_at, updated_at = :now_at,
  result_json = CASE seq
    WHEN :id0 THEN :result0 WHEN :id1 THEN :result1 WHEN :id2 THEN :result2 WHEN :id3 THEN :result3 WHEN :id4 THEN :result4
    WHEN :id5 THEN :result5 WHEN :id6 THEN :result6 WHEN :id7 THEN :result7 WHEN :id8 THEN :result8 WHEN :id9 THEN :result9
    WHEN :id10 THEN :result10 WHEN :id11 THEN :result11 WHEN :id12 THEN :result12 WHEN :id13 THEN :result13 WHEN :id14 THEN :result14
    WHEN :id15 THEN :result15 WHEN :id16 THEN :result16 WHEN :id17 THEN :result17 WHEN :id18 THEN :result18 WHEN :id19 THEN :result19
    WHEN :id20 THEN :result20 WHEN :id21 THEN :result21 WHEN :id22 THEN :result22 WHEN :id23 THEN :result23 WHEN :id24 THEN :result24
    WHEN :id25 THEN :result25 WHEN :id26 THEN :result26 WHEN :id27 THEN :result27 WHEN :id28 THEN :result28 WHEN :id29 THEN :result29
    WHEN :id30 THEN :result30 WHEN :id31 THEN :result31 WHEN :id32 THEN :result32 WHEN :id33 THEN :result33 WHEN :id34 THEN :result34
    WHEN :id35 THEN :result35 WHEN :id36 THEN :result36 WHEN :id37 THEN :result37 WHEN :id38 THEN :result38 WHEN :id39 THEN :result39
    WHEN :id40 THEN :result40 WHEN :id41 THEN :result41 WHEN :id42 THEN :result42 WHEN :id43 THEN :result43 WHEN :id44 THEN :result44
    WHEN :id45 THEN :result45 WHEN :id46 THEN :result46 WHEN :id47 THEN :result47 WHEN :id48 THEN :result48 WHEN :id49 THEN :result49 END,
  metrics_json = CASE seq
    WHEN :id0 THEN :metrics0 WHEN :id1 THEN :metrics1 WHEN :id2 THEN :metrics2 WHEN :id3 THEN :metrics3 WHEN :id4 THEN :metrics4
    WHEN :id5 THEN :metrics5 WHEN :id6 THEN :metrics6 WHEN :id7 THEN :metrics7 WHEN :id8 THEN :metrics8 WHEN :id9 THEN :metrics9
    WHEN :id10 THEN :metrics10 WHEN :id11 THEN :metrics11 WHEN :id12 THEN :metrics12 WHEN :id13 THEN :metrics13 WHEN :id14 THEN :metrics14
    WHEN :id15 THEN :metrics15 WHEN :id16 THEN :metrics16 WHEN :id17 THEN :metrics17 WHEN :id18 THEN :metrics18 WHEN :id19 THEN :metrics19
    WHEN :id20 THEN :metrics20 WHEN :id21 THEN :metrics21 WHEN :id22 THEN :metrics22 WHEN :id23 THEN :metrics23 WHEN :id24 THEN :metrics24
    WHEN :id25 THEN :metrics25 WHEN :id26 THEN :metrics26 WHEN :id27 THEN :metrics27 WHEN :id28 THEN :metrics28 WHEN :id29 THEN :metrics29
    WHEN :id30 THEN :metrics30 WHEN :id31 THEN :metrics31 WHEN :id32 THEN :metrics32 WHEN :id33 THEN :metrics33 WHEN :id34 THEN :metrics34
    WHEN :id35 THEN :metrics35 WHEN :id36 THEN :metrics36 WHEN :id37 THEN :metrics37 WHEN :id38 THEN :metrics38 WHEN :id39 THEN :metrics39
    WHEN :id40 THEN :metrics40 WHEN :id41 THEN :metrics41 WHEN :id42 THEN :metrics42 WHEN :id43 THEN :metrics43 WHEN :id44 THEN :metrics44
    WHEN :id45 THEN :metrics45 WHEN :id46 THEN :metrics46 WHEN :id47 THEN :metrics47 WHEN :id48 THEN :metrics48 WHEN :id49 THEN :metrics49 END
WHERE lane + 0 = 4 AND seq IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49)
AND lease_id IN (
  :lease0, :lease1, :lease2, :lease3, :lease4, :lease5, :lease6, :lease7, :lease8, :lease9, :lease10, :lease11,
  :lease12, :lease13, :lease14, :lease15, :lease16, :lease17, :lease18, :lease19, :lease20, :lease21, :lease22, :lease23,
  :lease24, :lease25, :lease26, :lease27, :lease28, :lease29, :lease30, :lease31, :lease32, :lease33, :lease34, :lease35,
  :lease36, :lease37, :lease38, :lease39, :lease40, :lease41, :lease42, :lease43, :lease44, :lease45, :lease46, :lease47,
  :lease48, :lease49)

-- name: release_leases_among
-- release_lease for up to 50 leases; unused places repeat one. Guard: active. That they last was judged when they were locked.
UPDATE scheduler_lease_runs SET state = 'RELEASED', released_at = :now_at, release_status = :status,
  release_digest = CASE lease_id
    WHEN :id0 THEN :digest0 WHEN :id1 THEN :digest1 WHEN :id2 THEN :digest2 WHEN :id3 THEN :digest3 WHEN :id4 THEN :digest4
    WHEN :id5 THEN :digest5 WHEN :id6 THEN :digest6 WHEN :id7 THEN :digest7 WHEN :id8 THEN :digest8 WHEN :id9 THEN :digest9
    WHEN :id10 THEN :digest10 WHEN :id11 THEN :digest11 WHEN :id12 THEN :digest12 WHEN :id13 THEN :digest13 WHEN :id14 THEN :digest14
    WHEN :id15 THEN :digest15 WHEN :id16 THEN :digest16 WHEN :id17 THEN :digest17 WHEN :id18 THEN :digest18 WHEN :id19 THEN :digest19
    WHEN :id20 THEN :digest20 WHEN :id21 THEN :digest21 WHEN :id22 THEN :digest22 WHEN :id23 THEN :digest23 WHEN :id24 THEN :digest24
    WHEN :id25 THEN :digest25 WHEN :id26 THEN :digest26 WHEN :id27 THEN :digest27 WHEN :id28 THEN :digest28 WHEN :id29 THEN :digest29
    WHEN :id30 THEN :digest30 WHEN :id31 THEN :digest31 WHEN :id32 THEN :digest32 WHEN :id33 THEN :digest33 WHEN :id34 THEN :digest34
    WHEN :id35 THEN :digest35 WHEN :id36 THEN :digest36 WHEN :id37 THEN :digest37 WHEN :id38 THEN :digest38 WHEN :id39 THEN :digest39
    WHEN :id40 THEN :digest40 WHEN :id41 THEN :digest41 WHEN :id42 THEN :digest42 WHEN :id43 THEN :digest43 WHEN :id44 THEN :digest44
    WHEN :id45 THEN :digest45 WHEN :id46 THEN :digest46 WHEN :id47 THEN :digest47 WHEN :id48 THEN :digest48 WHEN :id49 THEN :digest49 END
WHERE COALESCE(state, '') = 'ACTIVE' AND lease_id IN (
  :id0, :id1, :id2, :id3, :id4, :id5, :id6, :id7, :id8, :id9, :id10, :id11, :id12, :id13, :id14,
  :id15, :id16, :id17, :id18, :id19, :id20, :id21, :id22, :id23, :id24, :id25, :id26, :id27, :id28, :id29,
  :id30, :id31, :id32, :id33, :id34, :id35, :id36, :id37, :id38, :id39, :id40, :id41, :id42, :id43, :id44,
  :id45, :id46, :id47, :id48, :id49)

-- name: list_hours
-- A metric's hours that begin after one instant and before another.
SELECT hour_at, sums FROM queue_hours
WHERE metric = :metric AND hour_at > :since AND hour_at < :until AND sums IS NOT NULL

-- name: list_minutes
-- A metric's minutes that were not moved to their hours yet.
SELECT bucket_at, entry, n FROM rollups
WHERE metric = :metric AND minutes = 1 AND bucket_at >= :since AND bucket_at < :until

-- name: first_past_minute
-- The oldest of them that is over.
SELECT MIN(bucket_at) FROM rollups WHERE metric = :metric AND minutes = 1 AND bucket_at < :before

-- name: enter_hour
-- An hour nothing was moved to before.
{insert_ignore} queue_hours (metric, hour_at) VALUES (:metric, :hour_at) {on_conflict_ignore}

-- name: lock_hour
-- An hour, held until the end of the transaction.
SELECT sums FROM queue_hours WHERE metric = :metric AND hour_at = :hour_at {for_update}

-- name: lock_minutes
-- A metric's minutes of one hour, held: nobody adds to them until they are moved.
SELECT bucket_at, entry, n FROM rollups
WHERE metric = :metric AND minutes = 1 AND bucket_at >= :since AND bucket_at < :until
ORDER BY bucket_at, entry LIMIT :limit {for_update}

-- name: set_hour
-- An hour with more minutes in it. Guard: none, the row is held.
UPDATE queue_hours SET sums = :sums WHERE metric = :metric AND hour_at = :hour_at

-- name: list_old_hours
-- The oldest hours, begun before an instant.
SELECT metric, hour_at FROM queue_hours WHERE hour_at <= :before ORDER BY hour_at LIMIT :limit

-- name: delete_hour
-- Forget one hour.
DELETE FROM queue_hours WHERE metric = :metric AND hour_at = :hour_at
