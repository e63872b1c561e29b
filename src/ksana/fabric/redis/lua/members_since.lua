-- Read the members of a sorted set that were entered at or after a time.
-- KEYS[1] sorted set
-- ARGV[1] the time, ms
-- Answers the server's time in ms, then the members.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf')
table.insert(found, 1, now)
return found
