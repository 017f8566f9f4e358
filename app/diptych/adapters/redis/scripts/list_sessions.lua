#!lua flags=no-writes
-- Describes sessions, in one flat list: session, runs, events, created, updated, session …
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local fields = redis.call('HMGET', key('session', ARGV[i]), 'events', 'created', 'updated')
  if fields[2] then
    local runs = redis.call('ZCARD', key('runs', ARGV[i]))
    for _, value in ipairs({ ARGV[i], runs, fields[1], fields[2], fields[3] }) do
      found[#found + 1] = value
    end
  end
end
return found
