-- Jobs that ended and whose runs have not been told.

-- name: note_end
-- A job that a run waits for has ended.
INSERT INTO handover_ends (job_id) VALUES (:job_id)

-- name: list_noted
-- The oldest notes; rows another instance is at are left to it.
SELECT id, job_id FROM handover_ends ORDER BY id LIMIT :limit {skip_locked}

-- name: has_any
-- Whether there is one.
SELECT id FROM handover_ends LIMIT 1

-- name: remove_end
-- The run has been told.
DELETE FROM handover_ends WHERE id = :id
