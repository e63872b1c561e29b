-- Remove the members of a sorted set that were last entered long ago.
-- KEYS[1] sorted set
-- ARGV[1] how long ago, ms
-- ARGV[2] how many at most
-- Answers the members that were removed.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1], 'LIMIT', 0, ARGV[2])
for _, member in ipairs(old) do
  redis.call('ZREM', KEYS[1], member)
end
return old
