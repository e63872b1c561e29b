-- A node said that it does not have a model: mark it away, within the limits of a storm.
-- KEYS[1] away: models by until when they are away, ms
-- KEYS[2] marks: models by when they were marked, ms; one that is marked again counts once more
-- ARGV[1] model
-- ARGV[2] how long it is away, ms
-- ARGV[3] debounce, ms
-- ARGV[4] marks allowed in the window
-- ARGV[5] window, ms
-- Answers 1: marked, 0: debounced, -1: too many marks.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[5])
local away_until = redis.call('ZSCORE', KEYS[1], ARGV[1])
if away_until and now < tonumber(away_until) - ARGV[2] + ARGV[3] then
  return 0
end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then
  return -1
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now, now .. ':' .. ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1
