-- Count the slots of a node that are held.
-- KEYS[1] reserved
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZCOUNT', KEYS[1], '(' .. now, '+inf')
