#!lua flags=allow-oom
-- Renews leases, and gives the numbers of those that are lost. A session without unfinished runs is
-- skipped: its lease was released while this was on its way.
-- ARGV: prefix, lease ms, (session, token) …
local lost = {}
for i = 3, #ARGV, 2 do
  if refusal(ARGV[i], ARGV[i + 1]) then
    lost[#lost + 1] = (i - 3) / 2
  elseif redis.call('EXISTS', key('queue', ARGV[i])) == 1 then
    redis.call('SET', key('lease', ARGV[i]), ARGV[i + 1], 'PX', ARGV[2])
  end
end
return lost
