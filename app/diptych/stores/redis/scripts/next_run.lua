#!lua flags=allow-oom
-- Gives the first run of a session's queue, to its owner.
-- ARGV: prefix, session, token, server, lease ms
local refused = refusal(ARGV[2], ARGV[3])
if refused then
  return { refused }
end
local run = next_run(ARGV[2], ARGV[3], ARGV[4], ARGV[5])
if not run then
  count(ARGV[2])
end
return { 'ok', run }
