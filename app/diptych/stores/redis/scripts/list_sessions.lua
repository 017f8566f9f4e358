#!lua flags=no-writes
-- Describes sessions: of each its id, how many runs and events it has, created and updated.
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local fields = redis.call('HMGET', key('session', ARGV[i]), 'events', 'created', 'updated')
  if fields[2] then
    local runs = redis.call('ZCARD', key('runs', ARGV[i]))
    found[#found + 1] = { ARGV[i], runs, fields[1], fields[2], fields[3] }
  end
end
return found
