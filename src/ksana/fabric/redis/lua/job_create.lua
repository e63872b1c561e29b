-- Write a new node job, unless it is there.
-- KEYS[1] job
-- ARGV[1] time to live, ms
-- ARGV[2..] fields and values; the first two are the request and the home
-- Answers whether it is new (1 or 0), its state and its attempt. The same request of the same home
-- is new however often this is executed: its answer may have been lost on the way.
local found = redis.call('HMGET', KEYS[1], 'request', 'home', 'state', 'attempt')
if not found[3] then
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  found = redis.call('HMGET', KEYS[1], 'request', 'home', 'state', 'attempt')
end
local is_new = found[1] == ARGV[3] and found[2] == ARGV[5]
return {is_new and 1 or 0, found[3], found[4]}
