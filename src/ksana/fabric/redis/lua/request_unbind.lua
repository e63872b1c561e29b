-- Take a binding back, if it is to this job.
-- KEYS[1] binding
-- ARGV[1] job id
-- Answers 1 if it was removed.
local bound = redis.call('GET', KEYS[1])
if not bound or cjson.decode(bound)['job_id'] ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
