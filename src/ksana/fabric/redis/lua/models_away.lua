-- List the models of a node that are away.
-- KEYS[1] away
-- Answers the models, each followed by for how much longer, ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')
for i = 2, #found, 2 do
  found[i] = found[i] - now
end
return found
