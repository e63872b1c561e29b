-- Put a dead letter back into its inbox.
-- KEYS[1] inbox
-- KEYS[2] dead letters
-- ARGV[1] id of the letter
-- ARGV[2] group
-- Answers 1, or 0 if there is no such letter.
local found = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])
if not found[1] then
  return 0
end
local fields = found[1][2]
local body
for i = 1, #fields, 2 do
  if fields[i] == 'm' then
    body = fields[i + 1]
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
end
redis.call('XADD', KEYS[1], '*', 'm', body)
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
