-- Make an inbox with its consumer group, unless it is there.
-- KEYS[1] inbox
-- ARGV[1] group
-- Answers 1 if it was made.
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then
      return 0
    end
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
return 1
