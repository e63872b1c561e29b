-- Hold a slot of a node for a job.
-- KEYS[1] reserved: job ids by when the slot runs out, ms
-- KEYS[2] away: models by until when they are away, ms
-- KEYS[3] drain mark
-- ARGV[1] job id
-- ARGV[2] slots of the node
-- ARGV[3] model
-- ARGV[4] time to live, ms
-- Answers 1: reserved, 0: full, -1: model away, -2: draining.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local away = redis.call('ZSCORE', KEYS[2], ARGV[3])
  if away and tonumber(away) > now then
    return -1
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return -2
  end
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
    return 0
  end
end
redis.call('ZADD', KEYS[1], now + ARGV[4], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1
