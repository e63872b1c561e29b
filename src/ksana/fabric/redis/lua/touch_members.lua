-- Enter members into a sorted set at the server's time.
-- KEYS[1] sorted set
-- ARGV    members
-- Answers the time, ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, member in ipairs(ARGV) do
  redis.call('ZADD', KEYS[1], now, member)
end
return now
