-- A row of what was `queue` is now a run: `count` consecutive events of one stream from `seq` on, with the same time. A
-- row of format 1 is a run of one. The table has another name, so that nothing of an older version that still runs, and
-- would take a run for one event, can find it: it ends with an error.
alter table queue rename to in_line;
alter table in_line add column count bigint not null default 1;

do $$ begin
    execute replace(pg_get_functiondef('commit_group'::regproc), 'insert into queue ', 'insert into in_line ');
end $$;

create or replace function lock_positions() returns void
language sql as $$ select pg_advisory_xact_lock(1397509706, 'in_line'::regclass::oid::integer) $$;

-- As before, but that runs are taken apart: the one with which `most` is reached is taken whole, and not counted beyond.
create or replace function line_up(most bigint) returns bigint
language plpgsql as $$
declare
    head bigint;
    given bigint;
begin
    if not exists (select from in_line) then
        return 0;
    end if;
    perform lock_positions();
    select last_seq into head from stream where id = 0;
    with first as (select * from in_line order by id limit most),
        summed as (select *, (sum(count) over (order by id))::bigint - count as before from first),
        next as (select * from summed where before < most),
        taken as (delete from in_line using next where in_line.id = next.id)
    insert into pointer (position, stream_id, seq, sum, at_int, at_real, at_text)
        select head + n.before + p.place, n.stream_id, n.seq + p.place - 1,
            n.crc + 3 * (n.seq + p.place - 1) + head + n.before + p.place, n.at_int, n.at_real, n.at_text
        from next n cross join lateral generate_series(1, n.count) as p (place);
    get diagnostics given = row_count;
    if given > 0 then
        update stream set last_seq = head + given where id = 0;
    end if;
    return least(given, most);
end $$;
