-- The queue: jobs with their leases, classes, capacity, gauges.
--
-- A job's position: NULL once ended, 0 scheduled (it waits for its time), 1 ready, 2 claimed, 3 waits for capacity, 4 running.
-- Locks are taken in one order: capacity, jobs with their leases; units are given back at the end, before anything is counted.
-- `(SELECT {now})` asks the store's clock once for a statement, not once for a row. A search by time is bounded by `:now_at` too: a database
-- does not search an index by a clock that may differ from row to row, and would walk through all that waits.

-- name: insert_job
-- A new job.
INSERT INTO scheduler_job_runs ({postgres seq, }job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, run_at, fairness_key, client_request_id, cancel_requested, position, urgency, class_id,
  turn, due_at)
VALUES ({postgres (SELECT seq FROM job_keys WHERE job_id = :job_id), }:job_id, {alike addon_id}, {alike job_type}, {alike priority}, {alike cost_units},
  {alike constraints_json}, :payload_json, {same state}, {same attempts},
  {alike max_attempts}, {same created_at}, {same updated_at}, {same run_at}, {alike fairness_key}, :client_request_id, {same cancel_requested}, {same position}, {alike urgency}, {alike class_id},
  :turn, {same due_at})

-- name: insert_job_once
-- A new job. Guard: its addon has not sent the same client_request_id before.
{insert_ignore} scheduler_job_runs ({postgres seq, }job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, run_at, fairness_key, client_request_id, cancel_requested, position, urgency, class_id,
  turn, due_at)
VALUES ({postgres (SELECT seq FROM job_keys WHERE job_id = :job_id), }:job_id, {alike addon_id}, {alike job_type}, {alike priority}, {alike cost_units},
  {alike constraints_json}, :payload_json, {same state}, {same attempts},
  {alike max_attempts}, {same created_at}, {same updated_at}, {same run_at}, {alike fairness_key}, :client_request_id, {same cancel_requested}, {same position}, {alike urgency}, {alike class_id},
  :turn, {same due_at})
{on_conflict_ignore}

-- name: insert_job_at_tail
-- A new job that came alone, behind all that wait at its urgency; on PostgreSQL with its keys. Guard: its addon has not sent the same
-- client_request_id before. PostgreSQL fails the transaction then, by the root of less than nothing.
{postgres WITH entered AS (
  INSERT INTO job_keys (job_id, addon_id, job_type, created_at, client_request_id)
  VALUES (:job_id, :addon_id, :job_type, :created_at, :client_request_id)
  ON CONFLICT DO NOTHING RETURNING seq
)}
{insert_ignore} scheduler_job_runs ({postgres seq, }job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, run_at, fairness_key, client_request_id, cancel_requested, position, urgency, class_id,
  turn, due_at)
VALUES ({postgres (SELECT MAX(seq) + CAST(sqrt(COUNT(*) - 1) AS BIGINT) FROM entered), }:job_id, :addon_id, :job_type, :priority, :cost_units,
  :constraints_json, :payload_json, :state, :attempts,
  :max_attempts, :created_at, :updated_at, :run_at, :fairness_key, :client_request_id, :cancel_requested, :position, :urgency, :class_id,
  COALESCE({mysql @ksana_tail}{sqlite (SELECT turn FROM scheduler_job_runs INDEXED BY job_runs_ready
    WHERE position = 1 AND urgency = :urgency ORDER BY turn DESC LIMIT 1)}{postgres (SELECT turn FROM scheduler_job_runs
    WHERE position = 1 AND urgency >= :urgency AND urgency <= :urgency ORDER BY urgency DESC, turn DESC LIMIT 1)}, 0), :due_at)
{sqlite ON CONFLICT DO NOTHING}

-- name: note_tail
-- The greatest turn that waits at an urgency, for the INSERT that comes next, on MariaDB and MySQL: one that reads its own table copies
-- what it read first, which costs as much as the INSERT.
{mysql SET @ksana_tail = }(SELECT turn FROM scheduler_job_runs {force_index job_runs_ready}
WHERE {partial 1 ready_urgency} AND {only_of urgency ready_urgency}
ORDER BY {last urgency} turn DESC LIMIT 1)

-- name: enter_keys
-- The number of a new job and what never changes of it, on PostgreSQL: see `job_keys`.
INSERT INTO job_keys (job_id, addon_id, job_type, created_at, client_request_id)
VALUES (:job_id, :addon_id, :job_type, :created_at, :client_request_id)

-- name: enter_keys_once
-- The same. Guard: its addon has not sent the same client_request_id before.
INSERT INTO job_keys (job_id, addon_id, job_type, created_at, client_request_id)
VALUES (:job_id, :addon_id, :job_type, :created_at, :client_request_id)
ON CONFLICT DO NOTHING

-- name: delete_keys
-- Guard: the job is gone.
DELETE FROM job_keys WHERE seq = :seq AND NOT EXISTS (SELECT 1 FROM scheduler_job_runs WHERE seq = :seq)

-- name: find_job
-- One job.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs WHERE {keyed job_keys seq job_id}

-- name: lock_job
-- One job, held until the end of the transaction, and whether its claim, or its lease if it runs, still lasts by the store's clock.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest,
  CASE WHEN claim_expires_at > {now} OR (position = 4 AND lease_expires_at > {now}) THEN 1 ELSE 0 END
FROM scheduler_job_runs WHERE {keyed job_keys seq job_id} {for_update}

-- name: find_job_by_request
-- The job an addon submitted under its own id.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs WHERE {keyed_pair job_keys seq addon_id client_request_id}

-- name: find_jobs
-- Jobs by id.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs {force_index job_runs_id} WHERE {keyed_in job_keys seq job_id ids}

-- name: lock_jobs
-- Jobs by id, held.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs {force_index job_runs_id} WHERE {keyed_in job_keys seq job_id ids} {for_update}

-- name: list_jobs
-- Jobs by number, newest first. By `seq + 0`, or a database that avoids sorts would walk through all of them for their order.
-- large: constraints_json, payload_json, result_json, metrics_json
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs {force_primary} WHERE seq {in seqs} ORDER BY seq + 0 DESC

-- name: next_due
-- When something of the queue is due next: a scheduled job, a claim's end, a lease's end.
SELECT
  (SELECT MIN({either due_at scheduled_at}) FROM scheduler_job_runs WHERE {partial 0 scheduled_at}),
  (SELECT MIN(claim_expires_at) FROM scheduler_job_runs WHERE claim_expires_at IS NOT NULL),
  (SELECT MIN({either lease_expires_at leased_until}) FROM scheduler_job_runs WHERE {partial 4 leased_until})

-- name: list_finished
-- Jobs that ended long ago, and which are dead letters.
SELECT seq, finished_at,
  CASE WHEN EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'queue' AND entity_id = scheduler_job_runs.job_id) THEN 1 ELSE 0 END
FROM scheduler_job_runs {force_index job_runs_finished}
WHERE finished_at IS NOT NULL AND finished_at < :before
  AND finished_at >= :after_at AND (finished_at > :after_at OR seq > :after_seq)
ORDER BY finished_at, seq LIMIT :limit

-- name: delete_job
-- Guard: ended, and no dead letter.
DELETE FROM scheduler_job_runs WHERE seq = :seq AND position IS NULL
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE surface = 'queue' AND entity_id = scheduler_job_runs.job_id)

-- name: delete_leases
-- The earlier leases of a job. Guard: it is gone.
DELETE FROM past_leases WHERE job_seq = :job_seq
  AND NOT EXISTS (SELECT 1 FROM scheduler_job_runs WHERE seq = :job_seq)

-- name: list_addons
-- Whose jobs these are.
SELECT seq, addon_id FROM scheduler_job_runs {force_primary} WHERE seq {in seqs}

-- name: enter_class
-- A class, or that it is used longer than was known.
INSERT INTO job_classes (id, addon_id, job_type, cost_units, needs_json, used_until)
VALUES (:id, :addon_id, :job_type, :cost_units, :needs_json, :used_until)
{upsert id} used_until = CASE WHEN {excluded used_until} > job_classes.used_until THEN {excluded used_until}
  ELSE job_classes.used_until END

-- name: keep_class
-- Guard: it would end soon.
UPDATE job_classes SET used_until = :used_until WHERE id = :id AND used_until < :soon_at

-- name: list_class_ids
-- The classes of jobs.
SELECT DISTINCT class_id FROM scheduler_job_runs {force_primary} WHERE seq {in seqs}

-- name: count_classes
-- How many there are, counted up to a limit.
SELECT COUNT(*) FROM (SELECT id FROM job_classes LIMIT :limit) AS entered

-- name: list_known_classes
-- Those of these that are entered.
SELECT id FROM job_classes WHERE id {in ids}

-- name: list_old_classes
-- Classes whose time is over, and whether jobs of them are ready or held all the same.
SELECT id, used_until,
  CASE WHEN EXISTS (SELECT 1 FROM scheduler_job_runs {force_index job_runs_class}
      WHERE {partial 1 ready_class} AND {either class_id ready_class} = job_classes.id)
    OR id IN (SELECT class_id FROM scheduler_job_runs {force_index job_runs_leased} WHERE {partial 4 leased_until})
    OR id IN (SELECT class_id FROM scheduler_job_runs WHERE claim_expires_at IS NOT NULL)
  THEN 1 ELSE 0 END
FROM job_classes
WHERE used_until < :before AND used_until >= :after_at AND (used_until > :after_at OR id > :after_seq)
ORDER BY used_until, id LIMIT :limit

-- name: has_overdue
-- Whether a scheduled job should have been ready for a while.
SELECT 1 FROM scheduler_job_runs {force_index job_runs_scheduled}
WHERE {partial 0 scheduled_at} AND {either due_at scheduled_at} <= :before LIMIT 1

-- name: delete_class
-- Guard: its time is over, and no job of it is ready.
DELETE FROM job_classes WHERE id = :id AND used_until < :before
  AND NOT EXISTS (SELECT 1 FROM scheduler_job_runs WHERE {partial 1 ready_class} AND {either class_id ready_class} = job_classes.id)

-- name: next_ready_class
-- The next class of which a job is ready, by its number, and such a job.
SELECT class_id, job_id FROM scheduler_job_runs {force_index job_runs_class}
WHERE {partial 1 ready_class} AND {either class_id ready_class} > :after ORDER BY {either class_id ready_class} LIMIT 1

-- name: claim_outlook
-- What a claim asks first: whether a scheduled job is due by the store's clock, the units used, and how often classes were entered; then
-- the pool as last committed, from which is out what is set aside.
SELECT EXISTS (SELECT 1 FROM scheduler_job_runs {force_index job_runs_scheduled} WHERE {partial 0 scheduled_at}
    AND {either due_at scheduled_at} <= :now_at AND {either due_at scheduled_at} <= {now}),
  used - (SELECT COALESCE(SUM(units), 0) FROM queue_allotments),
  (SELECT COALESCE(SUM(classes), 0) FROM queue_gauges),
  used, active, reserved_units, reserved_for, reserved_urgency, reserved_until
FROM queue_capacity WHERE id = 1

-- name: list_classes
-- Classes that are used at least so long.
SELECT id, addon_id, job_type, cost_units, needs_json FROM job_classes WHERE used_until >= :since ORDER BY id

-- name: head_turn
-- The least turn that waits at this urgency.
SELECT turn FROM scheduler_job_runs {force_index job_runs_ready} WHERE {partial 1 ready_urgency} AND {only_of urgency ready_urgency}
ORDER BY {first urgency} turn LIMIT 1

-- name: tail_turn
-- The greatest turn that waits at this urgency.
SELECT turn FROM scheduler_job_runs {force_index job_runs_ready} WHERE {partial 1 ready_urgency} AND {only_of urgency ready_urgency}
ORDER BY {last urgency} turn DESC LIMIT 1

-- name: key_turn
-- The greatest turn that waits at this urgency under a fairness key.
SELECT MAX(turn) FROM scheduler_job_runs
WHERE {partial 1 ready_key} AND {either fairness_key ready_key} = :fairness_key AND urgency = :urgency

-- name: list_due
-- Scheduled jobs whose time has come, by the store's clock.
SELECT seq, job_id, urgency, fairness_key FROM scheduler_job_runs {force_index job_runs_scheduled}
WHERE {partial 0 scheduled_at} AND {either due_at scheduled_at} <= :now_at AND {either due_at scheduled_at} <= {now}
ORDER BY {either due_at scheduled_at}, seq LIMIT :limit {skip_locked}

-- name: peek_ready
-- The head of all that is ready, unlocked: which classes a claim should take from.
SELECT class_id, urgency, turn, seq FROM scheduler_job_runs {force_index job_runs_ready}
WHERE {partial 1 ready_urgency} ORDER BY {either urgency ready_urgency}, turn, seq LIMIT :limit

-- name: peek_class
-- The head of one class, unlocked.
SELECT class_id, urgency, turn, seq FROM scheduler_job_runs {force_index job_runs_class}
WHERE {partial 1 ready_class} AND {only_of class_id ready_class} ORDER BY {first class_id} urgency, turn, seq LIMIT :limit

-- name: take_ready
-- The next ready jobs, held, passing over those that another claim holds. A large payload is left out: it reads as nothing.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json,
  CASE WHEN LENGTH(payload_json) > 16384 THEN '' ELSE payload_json END, attempts, max_attempts, created_at, run_at, next_retry_at,
  started_at, fairness_key, client_request_id, error_text, CASE WHEN LENGTH(metrics_json) > 1024 THEN NULL ELSE metrics_json END,
  urgency, class_id, turn, due_at, claims
FROM scheduler_job_runs {force_index job_runs_ready}
WHERE {partial 1 ready_urgency} ORDER BY {either urgency ready_urgency}, turn, seq LIMIT :limit {skip_locked}

-- name: take_class
-- The next ready jobs of one class, held, passing over those that another claim holds. A large payload is left out: it reads as nothing.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json,
  CASE WHEN LENGTH(payload_json) > 16384 THEN '' ELSE payload_json END, attempts, max_attempts, created_at, run_at, next_retry_at,
  started_at, fairness_key, client_request_id, error_text, CASE WHEN LENGTH(metrics_json) > 1024 THEN NULL ELSE metrics_json END,
  urgency, class_id, turn, due_at, claims
FROM scheduler_job_runs {force_index job_runs_class}
WHERE {partial 1 ready_class} AND {only_of class_id ready_class} ORDER BY {first class_id} urgency, turn, seq LIMIT :limit {skip_locked}

-- name: read_payloads
-- The payloads that were left out of jobs, in the order in which these are taken. By `urgency + 0`: see list_jobs.
-- large: payload_json
SELECT seq, payload_json
FROM scheduler_job_runs {force_primary} WHERE seq {in seqs} ORDER BY urgency + 0, turn, seq

-- name: list_expired_claims
-- Claims that ran out by the store's clock, held.
SELECT seq, job_id, state, claimed_by, claim_token, attempts, urgency
FROM scheduler_job_runs {force_index job_runs_claim}
WHERE claim_expires_at IS NOT NULL AND claim_expires_at <= :now_at AND claim_expires_at <= {now}
ORDER BY claim_expires_at LIMIT :limit {skip_locked}

-- name: best_pending_urgency
-- The most urgent other job that waits for capacity.
SELECT MIN({either urgency pending_urgency}) FROM scheduler_job_runs WHERE {partial 3 pending_urgency} AND job_id <> :job_id

-- name: count_ready
-- How many jobs a worker could claim now, counted up to a limit.
SELECT COUNT(*) FROM (
  SELECT seq FROM scheduler_job_runs {force_index job_runs_ready} WHERE {partial 1 ready_urgency} LIMIT :limit) AS ready

-- name: count_pending_ahead
-- How many wait for capacity before this one.
SELECT COUNT(*) FROM scheduler_job_runs
WHERE {partial 3 pending_urgency} AND job_id <> :job_id AND (urgency < :urgency OR (urgency = :urgency
  AND (pending_at < :pending_at OR (pending_at = :pending_at AND seq < :seq))))

-- name: count_pending_ahead_of_addon
-- How many of one addon wait for capacity before this one.
SELECT COUNT(*) FROM scheduler_job_runs
WHERE {partial 3 pending_urgency} AND job_id <> :job_id AND addon_id = :addon_id AND (urgency < :urgency OR (urgency = :urgency
  AND (pending_at < :pending_at OR (pending_at = :pending_at AND seq < :seq))))

-- name: count_ready_ahead
-- How many ready jobs of these classes are before this one, counted up to a limit.
SELECT COUNT(*) FROM (
  SELECT seq FROM scheduler_job_runs {force_index job_runs_class}
  WHERE {partial 1 ready_class} AND {either class_id ready_class} {in class_ids}
    AND (urgency < :urgency OR (urgency = :urgency AND (turn < :turn OR (turn = :turn AND seq < :seq))))
  LIMIT :limit) AS ahead

-- name: promote_job
-- A scheduled job gets its turn. Guard: still scheduled.
UPDATE scheduler_job_runs SET position = 1, turn = :turn WHERE seq = :seq AND position = 0

-- name: claim_job
-- Guard: still ready.
UPDATE scheduler_job_runs SET position = 2, state = 'CLAIMED', claimed_by = {alike worker_id}, claim_token = :claim_token,
  claims = {alike claims}, claim_expires_at = {same until}, updated_at = {same now_at}, progress = NULL, note = NULL
WHERE seq = :seq AND position = 1

-- name: start_job
-- Claim and lease in one. Guard: still ready, with so many attempts made.
UPDATE scheduler_job_runs SET position = 4, state = 'RUNNING', claimed_by = {alike worker_id}, claim_token = :claim_token,
  claims = {alike claims}, lease_id = :lease_id, lease_token = :lease_token, lease_ttl_sec = {alike ttl_sec}, heartbeat_at = {same now_at},
  lease_expires_at = {alike until}, attempts = {alike attempts}, started_at = {same now_at}, updated_at = {same now_at}, next_retry_at = NULL,
  progress = NULL, note = NULL
WHERE seq = :seq AND position = 1 AND attempts = :old_attempts

-- name: grant_job
-- A claimed job runs. Guard: claimed under this token, the claim lasts by the store's clock, with so many attempts made.
UPDATE scheduler_job_runs SET position = 4, state = 'RUNNING', lease_id = :lease_id, lease_token = :lease_token,
  lease_ttl_sec = {alike ttl_sec}, heartbeat_at = {same now_at}, lease_expires_at = {alike until}, attempts = {alike attempts}, claim_expires_at = NULL,
  pending_at = NULL, next_retry_at = NULL, started_at = {same now_at}, updated_at = {same now_at}
WHERE seq = :seq AND position IN (2, 3) AND claim_token = :claim_token AND attempts = :old_attempts AND claim_expires_at > {now}

-- name: deny_job
-- A refused request waits with its claim kept. Guard: claimed under this token, and the claim lasts by the store's clock.
UPDATE scheduler_job_runs SET position = 3, state = 'LEASE_PENDING', next_retry_at = :next_retry_at, claim_expires_at = :until,
  pending_at = COALESCE(pending_at, :now_at), updated_at = :now_at
WHERE seq = :seq AND position IN (2, 3) AND claim_token = :claim_token AND claim_expires_at > {now}

-- name: report_job
-- A worker's word on its claimed job; extends the claim. Guard: that state, under this token, and the claim lasts by the store's clock.
UPDATE scheduler_job_runs SET position = :position, state = :new_state, progress = :progress, note = :note,
  claim_expires_at = :until, updated_at = :now_at
WHERE seq = :seq AND position IN (2, 3) AND state = :old_state AND claim_token = :claim_token AND claim_expires_at > {now}

-- name: note_running_job
-- A worker's note on its running job. Guard: running under this very lease.
UPDATE scheduler_job_runs SET progress = :progress, note = :note, updated_at = :now_at
WHERE seq = :seq AND position = 4 AND lease_id = :lease_id

-- name: cancel_job
-- Guard: that state, and not running.
UPDATE scheduler_job_runs SET position = NULL, state = 'CANCELED', final_status = 'CANCELED', cancel_requested = 1,
  cancel_reason = :reason, claim_expires_at = NULL, pending_at = NULL, next_retry_at = NULL, finished_at = :now_at,
  updated_at = :now_at
WHERE seq = :seq AND position < 4 AND state = :old_state

-- name: request_cancel
-- Guard: running.
UPDATE scheduler_job_runs SET cancel_requested = 1, cancel_reason = :reason, updated_at = :now_at
WHERE seq = :seq AND position = 4

-- name: finish_job
-- The job ends, and its lease with it. Guard: running under this very lease, by its id and its token.
UPDATE scheduler_job_runs SET position = NULL, state = {same new_state}, final_status = {same final_status}, error_text = {same error_text},
  result_json = :result_json, metrics_json = {alike metrics_json}, finished_at = {same now_at}, updated_at = {same now_at},
  release_status = {same release_status}, release_digest = :release_digest
WHERE seq = :seq AND position = 4 AND lease_id = :lease_id AND lease_token = :lease_token

-- name: requeue_job
-- Another attempt: the lease is none of the job's any more. Guard: running under this very lease, by its id and its token.
UPDATE scheduler_job_runs SET position = :position, state = 'QUEUED', claimed_by = NULL, claim_token = 0, lease_id = NULL,
  lease_token = 0, lease_ttl_sec = NULL, heartbeat_at = NULL, lease_expires_at = NULL, attempts = :attempts, turn = :turn,
  due_at = :due_at, next_retry_at = :next_retry_at, error_text = :error_text, result_json = NULL, metrics_json = :metrics_json,
  progress = NULL, note = NULL, updated_at = :now_at
WHERE seq = :seq AND position = 4 AND lease_id = :lease_id AND lease_token = :lease_token

-- name: take_back_job
-- Back to its place. Guard: claimed under this token. That the claim ran out was found when it was locked.
UPDATE scheduler_job_runs SET position = 1, state = 'QUEUED', claimed_by = NULL, claim_token = 0,
  claim_expires_at = NULL, pending_at = NULL, next_retry_at = NULL, turn = :turn, progress = NULL, note = NULL,
  updated_at = :now_at
WHERE seq = :seq AND position IN (2, 3) AND claim_token = :claim_token

-- Leases. A job's last one lies in the job's row (`heartbeat_at` tells that it does), the earlier ones in `past_leases`.

-- name: keep_lease
-- A lease that ended, of a job that is queued again. One that was granted before leases lay in rows of jobs is there, as it was then.
INSERT INTO past_leases (lease_id, job_id, job_seq, addon_id, worker_id, cost_units, ttl_sec, state, granted_at,
  last_heartbeat_at, expires_at, released_at, release_status, release_digest, lease_token)
VALUES (:lease_id, :job_id, :job_seq, :addon_id, :worker_id, :cost_units, :ttl_sec, :state, :granted_at,
  :last_heartbeat_at, :expires_at, :released_at, :release_status, :release_digest, :lease_token)
{upsert lease_id} ttl_sec = {excluded ttl_sec}, state = {excluded state}, last_heartbeat_at = {excluded last_heartbeat_at},
  expires_at = {excluded expires_at}, released_at = {excluded released_at}, release_status = {excluded release_status},
  release_digest = {excluded release_digest}

-- name: end_old_lease
-- The end of a lease that was granted before leases lay in rows of jobs, as the row of its job has it.
UPDATE past_leases SET ttl_sec = (SELECT lease_ttl_sec FROM scheduler_job_runs WHERE seq = past_leases.job_seq), state = :state,
  last_heartbeat_at = (SELECT heartbeat_at FROM scheduler_job_runs WHERE seq = past_leases.job_seq),
  expires_at = (SELECT lease_expires_at FROM scheduler_job_runs WHERE seq = past_leases.job_seq),
  released_at = :released_at, release_status = :release_status, release_digest = :release_digest
WHERE lease_id = :lease_id

-- name: find_leased_job
-- A job with the lease in its row.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs WHERE seq = :seq AND lease_id = :lease_id AND heartbeat_at IS NOT NULL

-- name: find_past_lease
-- One lease of those that lie by themselves.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, lease_token
FROM past_leases WHERE lease_id = :lease_id

-- name: list_past_leases
-- The same, of many.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, lease_token
FROM past_leases {force_primary} WHERE lease_id {in ids}

-- name: list_jobs_of_leases
-- Which jobs they are of.
SELECT job_seq FROM past_leases {force_primary} WHERE lease_id {in ids}

-- name: lock_leased_jobs
-- Jobs by number, held, and whether the lease of each lasts by the store's clock. A large payload is left out: it reads as nothing.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, constraints_json, CASE WHEN LENGTH(payload_json) > 16384 THEN '' ELSE payload_json END, state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, result_json, metrics_json, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest,
  CASE WHEN position = 4 AND lease_expires_at > (SELECT {now}) THEN 1 ELSE 0 END
FROM scheduler_job_runs {force_primary} WHERE seq {in seqs} {for_update}

-- name: lock_leases_with_jobs
-- The leases in the rows of jobs, held, with what ending their attempts takes, and whether each lasts by the store's clock.
SELECT lease_id, job_id, addon_id, claimed_by, cost_units, lease_ttl_sec,
  CASE WHEN position = 4 THEN 'ACTIVE' WHEN release_status IS NULL THEN 'EXPIRED' ELSE 'RELEASED' END, lease_token, release_digest,
  started_at, heartbeat_at, lease_expires_at, CASE WHEN position = 4 AND lease_expires_at > (SELECT {now}) THEN 1 ELSE 0 END,
  seq, state, attempts, max_attempts, cancel_requested, urgency, claims
FROM scheduler_job_runs {force_primary} WHERE seq {in seqs} AND heartbeat_at IS NOT NULL {for_update}

-- name: list_past_with_jobs
-- The same of leases that ended and lie by themselves, unlocked: nothing of them changes.
SELECT l.lease_id, l.job_id, l.addon_id, l.worker_id, l.cost_units, l.ttl_sec, l.state, l.lease_token, l.release_digest,
  l.granted_at, l.last_heartbeat_at, l.expires_at, 0, j.seq, j.state, j.attempts, j.max_attempts, j.cancel_requested, j.urgency,
  j.claims
FROM past_leases AS l {force_primary} JOIN scheduler_job_runs AS j {force_primary} ON j.seq = l.job_seq
WHERE l.lease_id {in ids}

-- name: list_leases_of_job
-- The leases of a job that lie by themselves, oldest first.
SELECT lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, last_heartbeat_at, expires_at,
  released_at, release_status, release_digest, lease_token
FROM past_leases WHERE job_seq = :job_seq ORDER BY granted_at, lease_id

-- name: find_instants
-- A job's number, and when it was submitted, started last and ended: events of these instants may lie with those of other jobs.
SELECT seq, created_at, started_at, finished_at FROM scheduler_job_runs WHERE {keyed job_keys seq job_id}

-- name: list_grants
-- When the leases of a job were granted that lie by themselves.
SELECT granted_at FROM past_leases WHERE job_seq = :job_seq

-- name: list_active_leases
-- Who holds capacity, the first to run out first, with large values left out.
SELECT seq, job_id, addon_id, job_type, priority, cost_units, '', '', state, max_attempts,
  created_at, updated_at, position, urgency, class_id, turn, due_at, run_at, fairness_key, client_request_id, attempts, claims,
  claim_token, claimed_by, claim_expires_at, next_retry_at, pending_at, cancel_requested, cancel_reason, progress,
  note, started_at, finished_at, final_status, error_text, NULL, NULL, lease_id, lease_token, lease_ttl_sec, heartbeat_at,
  lease_expires_at, release_status, release_digest
FROM scheduler_job_runs {force_index job_runs_leased}
WHERE {partial 4 leased_until} ORDER BY {either lease_expires_at leased_until} LIMIT :limit

-- name: list_expired_leases
-- Leases that ran out by the store's clock, held, with what ending their attempts takes.
SELECT lease_id, job_id, addon_id, claimed_by, cost_units, lease_ttl_sec,
  CASE WHEN position = 4 THEN 'ACTIVE' WHEN release_status IS NULL THEN 'EXPIRED' ELSE 'RELEASED' END, lease_token, release_digest,
  started_at, heartbeat_at, lease_expires_at, CASE WHEN position = 4 AND lease_expires_at > (SELECT {now}) THEN 1 ELSE 0 END,
  seq, state, attempts, max_attempts, cancel_requested, urgency, claims
FROM scheduler_job_runs {force_index job_runs_leased}
WHERE {partial 4 leased_until} AND {either lease_expires_at leased_until} <= :now_at
  AND {either lease_expires_at leased_until} <= {now}
ORDER BY {either lease_expires_at leased_until} LIMIT :limit {skip_locked}

-- name: extend_lease
-- A sign of life. Guard: active, under this token. That it lasts was found when it was locked.
UPDATE scheduler_job_runs SET heartbeat_at = :now_at, lease_expires_at = :expires_at, lease_ttl_sec = :ttl_sec
WHERE seq = :seq AND position = 4 AND lease_token = :lease_token

-- name: sum_active
-- What the active leases hold in truth.
SELECT COUNT(*), COALESCE(SUM(cost_units), 0) FROM scheduler_job_runs {force_index job_runs_leased}
WHERE {partial 4 leased_until}

-- name: sum_active_of_addon
-- What the active leases of one addon hold.
SELECT COALESCE(SUM(cost_units), 0) FROM scheduler_job_runs {force_index job_runs_leased}
WHERE {partial 4 leased_until} AND addon_id = :addon_id

-- name: lock_capacity
-- The capacity, held: whoever admits or frees units takes this first.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity
WHERE id = 1 {for_update}

-- name: get_capacity
-- The capacity as last committed: what is set aside for an instance is not used.
SELECT used - (SELECT COALESCE(SUM(units), 0) FROM queue_allotments),
  active + (SELECT COALESCE(SUM(leases), 0) FROM queue_allotments),
  reserved_units, reserved_for, reserved_urgency, reserved_until
FROM queue_capacity WHERE id = 1

-- name: get_pool
-- The pool as last committed: what is set aside is out of it.
SELECT used, active, reserved_units, reserved_for, reserved_urgency, reserved_until FROM queue_capacity WHERE id = 1

-- name: list_allotments
-- What is set aside for the connections of each instance, as last committed.
SELECT shard, instance, units, leases, seen_at, era FROM queue_allotments

-- name: lock_allotments
-- The same, held. Under the lock of the pool.
SELECT shard, instance, units, leases, seen_at, era FROM queue_allotments ORDER BY shard {for_update}

-- name: draw_allotment
-- Units that are leased. Guard: they are still set aside, and were not brought home since.
UPDATE queue_allotments SET units = units - :units, leases = leases + :leases, seen_at = :now_at
WHERE shard = :shard AND era = :era AND units >= :units

-- name: add_to_allotment
-- Units given back, by whoever ended their leases: relative, and into a row of its own.
INSERT INTO queue_allotments (shard, instance, units, leases, seen_at, era)
VALUES (:shard, :instance, :units, :leases, :now_at, :era)
{upsert shard} units = queue_allotments.units + {excluded units}, leases = queue_allotments.leases + {excluded leases},
  seen_at = {excluded seen_at}

-- name: set_allotment
-- Under the lock of the pool and of the allotment: brought home, or dealt anew. When it was last used stays.
INSERT INTO queue_allotments (shard, instance, units, leases, seen_at, era)
VALUES (:shard, :instance, :units, :leases, :now_at, :era)
{upsert shard} units = {excluded units}, leases = {excluded leases}, era = {excluded era}

-- name: delete_allotment
-- Under the same locks: it is empty, and nobody has used it for long.
DELETE FROM queue_allotments WHERE shard = :shard

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
INSERT INTO queue_gauges (shard, queued, running, arrivals, classes) VALUES (:shard, :queued, :running, :arrivals, :classes)
{upsert shard} queued = queue_gauges.queued + {excluded queued}, running = queue_gauges.running + {excluded running},
  arrivals = queue_gauges.arrivals + {excluded arrivals}, classes = queue_gauges.classes + {excluded classes}

-- name: list_gauges
-- The rows of connections that are idle or gone, held.
SELECT shard, queued, running, arrivals, classes FROM queue_gauges WHERE shard <> :shard ORDER BY shard LIMIT :limit {skip_locked}

-- name: delete_gauges
-- Under the lock, after their sums were added to another row.
DELETE FROM queue_gauges WHERE shard = :shard

-- name: sum_gauges
-- The gauges.
SELECT COALESCE(SUM(queued), 0), COALESCE(SUM(running), 0), COALESCE(SUM(arrivals), 0) FROM queue_gauges

-- name: compare_gauges
-- Jobs that wait and run, counted, and the gauges: in one statement, so that both are of one instant.
SELECT
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE {partial 0 scheduled_at})
    + (SELECT COUNT(*) FROM scheduler_job_runs WHERE {partial 1 ready_urgency}),
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE {partial 4 leased_until}),
  (SELECT COALESCE(SUM(queued), 0) FROM queue_gauges),
  (SELECT COALESCE(SUM(running), 0) FROM queue_gauges)

-- name: find_job_id
-- The id of the job with a number.
SELECT job_id FROM scheduler_job_runs WHERE seq = :seq

-- name: find_job_of_lease
-- The job of a lease that lies by itself.
SELECT job_id FROM past_leases WHERE lease_id = :lease_id
