#!lua flags=allow-oom
-- Names the run whose turn it is.
-- ARGV: prefix, session, token, server, lease ms
local wrong = refusal(ARGV[2], ARGV[3])
if wrong then
  return { wrong }
end
return { 'ok', next_run(ARGV[2], ARGV[3], ARGV[4], ARGV[5]) }
