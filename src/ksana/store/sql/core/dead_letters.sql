-- Dead letters: each list is a range of an index, newest first. A letter is taken out when it is settled.

-- name: insert_letter
-- A new letter. Guard: its entity has none.
{insert_ignore} dead_letters (surface, entity_id, source, status, error, error_key, died_at)
VALUES (:surface, :entity_id, :source, :status, :error, :error_key, :died_at) {on_conflict_ignore}

-- name: delete_letter
-- Settled.
DELETE FROM dead_letters WHERE surface = :surface AND entity_id = :entity_id

-- name: find_letters
-- Letters by id.
SELECT id, surface, entity_id, source, status, error, error_key, died_at FROM dead_letters WHERE id {in ids} ORDER BY id

-- name: lock_letters
-- Letters by id, held.
SELECT id, surface, entity_id, source, status, error, error_key, died_at FROM dead_letters
WHERE id {in ids} ORDER BY id {for_update}

-- name: list_letters
-- Of a surface.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
-- filter before_at: AND died_at <= :before_at AND (died_at < :before_at OR id < :before_id)
SELECT id, surface, entity_id, source, status, error, error_key, died_at FROM dead_letters {force_index dead_letters_age}
WHERE surface = :surface {filters} ORDER BY died_at DESC, id DESC LIMIT :limit

-- name: list_of_error
-- Of a surface with one error.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
-- filter before_at: AND died_at <= :before_at AND (died_at < :before_at OR id < :before_id)
SELECT id, surface, entity_id, source, status, error, error_key, died_at FROM dead_letters {force_index dead_letters_error}
WHERE surface = :surface AND error_key = :error_key {filters} ORDER BY died_at DESC, id DESC LIMIT :limit

-- name: list_of_source
-- Of one source.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
-- filter before_at: AND died_at <= :before_at AND (died_at < :before_at OR id < :before_id)
SELECT id, surface, entity_id, source, status, error, error_key, died_at FROM dead_letters {force_index dead_letters_source}
WHERE surface = :surface AND source = :source {filters} ORDER BY died_at DESC, id DESC LIMIT :limit

-- name: count_letters
-- Of a surface, up to a limit.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
SELECT COUNT(*) FROM (SELECT id FROM dead_letters {force_index dead_letters_age}
  WHERE surface = :surface {filters} ORDER BY died_at LIMIT :limit) AS found

-- name: count_of_error
-- Of a surface with one error, up to a limit.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
SELECT COUNT(*) FROM (SELECT id FROM dead_letters {force_index dead_letters_error}
  WHERE surface = :surface AND error_key = :error_key {filters} ORDER BY died_at LIMIT :limit) AS found

-- name: count_of_source
-- Of one source, up to a limit.
-- filter since: AND died_at >= :since
-- filter until: AND died_at < :until
SELECT COUNT(*) FROM (SELECT id FROM dead_letters {force_index dead_letters_source}
  WHERE surface = :surface AND source = :source {filters} ORDER BY died_at LIMIT :limit) AS found

-- name: next_error
-- The next group of a surface.
SELECT error_key FROM dead_letters {force_index dead_letters_error}
WHERE surface = :surface AND error_key > :after ORDER BY error_key LIMIT 1

-- name: oldest_of_error
-- Since when a group has letters.
SELECT MIN(died_at) FROM dead_letters {force_index dead_letters_error} WHERE surface = :surface AND error_key = :error_key

-- name: list_surplus
-- Of a source beyond its newest.
SELECT entity_id FROM dead_letters {force_index dead_letters_source}
WHERE surface = :surface AND source = :source ORDER BY died_at DESC, id DESC LIMIT :limit OFFSET :keep

-- name: list_old
-- Of a surface that died long ago, the oldest first.
SELECT entity_id FROM dead_letters {force_index dead_letters_age}
WHERE surface = :surface AND died_at < :before ORDER BY died_at, id LIMIT :limit
