#!lua flags=no-writes
-- Describes sessions: session, runs, events, created, updated, one after another.
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local meta = redis.call('HMGET', key('session', ARGV[i]), 'events', 'created', 'updated')
  if meta[2] then
    local runs = redis.call('ZCARD', key('runs', ARGV[i]))
    for _, value in ipairs({ ARGV[i], runs, meta[1], meta[2], meta[3] }) do
      found[#found + 1] = value
    end
  end
end
return found
