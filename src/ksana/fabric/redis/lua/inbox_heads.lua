-- List dead letters without their messages, the newest first.
-- KEYS[1] dead letters
-- ARGV[1] from which id on, such as + or (5-0
-- ARGV[2] how many
-- Answers a list of id, kind of the message, deliveries, when it was moved (ms).
local heads = {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  local kind = string.match(string.sub(fields['m'] or '', 1, 64), '"kind":"([%a_]+)"')
  heads[#heads + 1] = {entry[1], kind or '', fields['deliveries'] or '0', fields['moved_ms'] or '0'}
end
return heads
