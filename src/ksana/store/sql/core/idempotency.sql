-- Answers remembered by Idempotency-Key.

-- name: find_answer
-- A remembered answer that still counts, by the store's clock.
SELECT body_hash, answer FROM idempotency_keys WHERE scope = :scope AND key_hash = :key_hash AND expires_at > {now}

-- name: drop_expired_answer
-- Make room for the same key used again after its day. Guard: expired by the store's clock.
DELETE FROM idempotency_keys WHERE scope = :scope AND key_hash = :key_hash AND expires_at <= {now}

-- name: remember_answer
-- Guard: nobody used the key before.
{insert_ignore} idempotency_keys (scope, key_hash, body_hash, answer, expires_at)
VALUES (:scope, :key_hash, :body_hash, :answer, :expires_at) {on_conflict_ignore}

-- name: list_expired_answers
-- Answers that no longer count.
SELECT scope, key_hash FROM idempotency_keys WHERE expires_at <= :before ORDER BY expires_at LIMIT :limit

-- name: delete_answer
-- Forget one.
DELETE FROM idempotency_keys WHERE scope = :scope AND key_hash = :key_hash AND expires_at <= :before
