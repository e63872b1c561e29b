-- Bind a request to a job, if it is free.
-- KEYS[1] binding
-- ARGV[1] the binding, JSON
-- ARGV[2] time to live, ms
-- Answers the binding that holds.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return ARGV[1]
end
return redis.call('GET', KEYS[1])
