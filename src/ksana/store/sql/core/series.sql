-- Counts over time, for any metric. Minutes are counted in `rollups`; a chore packs those that are over into `queue_hours`, which holds
-- the hours of every surface's metrics (it keeps the name of the first that had any).

-- name: list_hours
-- A metric's hours that begin after one instant and before another.
SELECT hour_at, sums FROM queue_hours
WHERE metric = :metric AND hour_at > :since AND hour_at < :until AND sums IS NOT NULL

-- name: list_minutes
-- A metric's minutes that were not moved to their hours yet.
SELECT bucket_at, entry, n FROM rollups
WHERE metric = :metric AND minutes = 1 AND bucket_at >= :since AND bucket_at < :until

-- name: list_hours_of
-- Hours of some metrics that begin after an instant and before another.
SELECT metric, hour_at, sums FROM queue_hours
WHERE metric {in metrics} AND hour_at > :since AND hour_at < :until AND sums IS NOT NULL

-- name: list_minutes_of
-- Their minutes that were not moved to their hours yet.
SELECT metric, entry, n FROM rollups
WHERE metric {in metrics} AND minutes = 1 AND bucket_at >= :since AND bucket_at < :until

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
